// Why: the `Transport` of a real node: an endpoint that accepts peers, connections dialled to
// others, and two event loops, one for links and one for heartbeats, so that neither waits for the
// other.
// Thread-safety: every member may be called from any thread; `shutdown` and the destructor not from
// the transport's own threads.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "net/endpoint.hpp"
#include "net/stream.hpp"

namespace troupe::net {

struct TcpTransportConfig {
  EndpointConfig endpoint;
  TcpStreamOptions stream;
  Duration shutdown_timeout = std::chrono::seconds{5};
};

class TcpTransport final : public Transport {
 public:
  /// Starts both loops. It does not listen yet.
  explicit TcpTransport(TcpTransportConfig config);
  ~TcpTransport() override;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  Executor& executor(StreamPurpose purpose) override;

  /// Refusals (other cluster, certificates) come as handshake_refused or unauthorized with the
  /// other side's reason; everything else as node_unreachable, timeout or invalid_argument. After
  /// `shutdown`, `done` is called with ec::closed on the caller's thread.
  void dial(std::string address, StreamPurpose purpose, Duration timeout,
            DialHandler done) override;
  void on_accept(AcceptHandler handler) override;

  /// See `Endpoint::listen`.
  expected<void> listen(const std::string& address) { return endpoint().listen(address); }

  Endpoint& endpoint() noexcept;

  /// Stops accepting, fails all dials, closes all streams (each sink hears on_closed) and ends both
  /// threads. Idempotent; the destructor calls it.
  void shutdown();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace troupe::net
