// Why: TLS for a peer stream, without the stalls of SSL_write on a socket: records are sealed into
// a buffer of ours, so that OpenSSL never has a half-written record and never asks to read in order
// to write; several records leave in one system call.
// Thread-safety: none; the stream calls it under its mutex. Internal to net/.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "net/error.hpp"
#include "net/stream.hpp"

struct ssl_st;
struct bio_st;
struct bio_method_st;

namespace troupe::net {

/// What a failed send means: node_unreachable when the peer is gone, else system_error.
error send_failure(int code);

class TlsCodec {
 public:
  enum class Status { ok, again, ended, failed };

  /// Takes over one reference to `ssl` (handshake done); `fd` stays the caller's.
  /// `received_cipher`: records that were read before.
  TlsCodec(int fd, ssl_st* ssl, std::string received_cipher);
  ~TlsCodec();
  TlsCodec(const TlsCodec&) = delete;
  TlsCodec& operator=(const TlsCodec&) = delete;

  struct ReadResult {
    Status status = Status::ok;
    std::size_t count = 0;
  };
  ReadResult read(MutableBuffer window);

  /// Seals and sends what fits and returns how many bytes were taken; see `write_failure`.
  std::size_t write(std::span<const ConstBuffer> buffers);

  /// Sends sealed bytes. False when the connection is broken.
  bool flush();

  /// Sealed bytes that the socket has not taken yet.
  std::size_t pending() const noexcept { return out_.size() - out_sent_; }

  /// Queues a close_notify and tries to send it.
  void shutdown();

  /// Why reading failed.
  const error& failure() const noexcept { return failure_; }
  /// Why writing failed; after that nothing is taken. Reading may go on.
  const error& write_failure() const noexcept { return write_failure_; }

 private:
  static const bio_method_st* method();
  static int bio_read(bio_st* bio, char* data, int size);
  static int bio_write(bio_st* bio, const char* data, int size);
  static long bio_ctrl(bio_st* bio, int command, long number, void* pointer);
  bool seal(const std::byte* data, std::size_t size);

  int fd_;
  ssl_st* ssl_;
  std::vector<char> in_;
  std::size_t in_begin_ = 0;
  std::size_t in_end_ = 0;
  bool eof_ = false;
  int read_errno_ = 0;
  std::vector<char> out_;
  std::size_t out_sent_ = 0;
  std::unique_ptr<std::byte[]> scratch_;
  error failure_;
  error write_failure_;
};

}  // namespace troupe::net
