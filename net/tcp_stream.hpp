// Why: a peer connection after its upgrade. Beast and Asio's TLS stream have done their part; what
// is left is a socket (and an SSL object) that moves bytes with as little as possible in between:
// reads land where the link wants them, writes go out on the caller's thread.
// Thread-safety: as `Stream` states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "net/asio_executor.hpp"
#include "net/stream.hpp"

struct ssl_st;

namespace troupe::net {

/// A connected socket that leaves the hands of the HTTP code. Whoever holds it owns `fd` and one
/// reference to `ssl`.
struct DetachedSocket {
  int fd = -1;
  bool ipv6 = false;
  ssl_st* ssl = nullptr;        ///< null: plaintext
  std::string received;         ///< bytes of the stream (plaintext) that were read too early
  std::string received_cipher;  ///< TLS records that were read too early
  std::string peer_address;

  DetachedSocket() = default;
  DetachedSocket(DetachedSocket&& other) noexcept;
  DetachedSocket& operator=(DetachedSocket&& other) noexcept;
  DetachedSocket(const DetachedSocket&) = delete;
  DetachedSocket& operator=(const DetachedSocket&) = delete;
  ~DetachedSocket();
};

struct TcpStreamOptions {
  /// Bytes that may wait unsent in the kernel (TCP_NOTSENT_LOWAT): a control message waits behind
  /// at most this much.
  std::size_t unsent_limit = std::size_t{256} << 10U;
  /// Bytes read from one stream before the loop serves the others.
  std::size_t read_budget = std::size_t{1} << 20U;
  /// How long a closed stream waits for the peer to read what was sent last.
  Duration linger = std::chrono::seconds{1};
};

/// Turns `socket` into a stream on `executor`. Never null; a socket that is already dead shows at
/// `start`.
std::shared_ptr<Stream> make_tcp_stream(std::shared_ptr<AsioExecutor> executor,
                                        DetachedSocket socket,
                                        const TcpStreamOptions& options = {});

}  // namespace troupe::net
