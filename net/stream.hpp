// Why: a link needs an ordered stream of bytes to another node and nothing else. TCP, TLS, the
// simulator and the fault hooks all provide this one interface, so that sequence numbers, credits
// and replay are the same code over each of them.
// Thread-safety: stated per member.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "net/error.hpp"
#include "net/executor.hpp"
#include "net/node_id.hpp"

namespace troupe::net {

using ConstBuffer = std::span<const std::byte>;
using MutableBuffer = std::span<std::byte>;

/// Receives what happens on a stream. All calls come on the executor's thread of the stream, one at a
/// time, never from inside a `Stream` member function.
class StreamSink {
 public:
  virtual ~StreamSink() = default;

  /// Where the next received bytes should go: at least one byte. Asked before every read; an
  /// implementation may fill less. Lets bulk payloads land in their final place.
  virtual MutableBuffer read_window() = 0;

  /// `count` bytes were placed at the start of the last read window (count > 0).
  virtual void on_bytes(std::size_t count) = 0;

  /// After a short `write`: there is room again.
  virtual void on_writable() = 0;

  /// The stream has ended, by the peer, an error or `close`. The last call.
  virtual void on_closed(const error& reason) = 0;
};

/// An ordered, reliable stream of bytes between two nodes, already past connect and upgrade.
class Stream {
 public:
  virtual ~Stream() = default;

  /// Starts delivery to `sink`, which the stream keeps alive until `on_closed`. Call once (again only
  /// to hand the stream to another sink, from inside a callback of the current one).
  virtual void start(std::shared_ptr<StreamSink> sink) = 0;

  /// Takes as many bytes as possible without blocking and returns how many (0 … sum of sizes). When
  /// fewer than offered were taken, `on_writable` follows once there is room. The bytes are copied or
  /// sent before it returns. Any thread, but one at a time (the link serialises its writers). After
  /// the end it swallows everything: `on_closed` tells.
  virtual std::size_t write(std::span<const ConstBuffer> buffers) = 0;

  /// Ends the stream: bytes already taken by `write` may still be sent; `on_closed(reason)` follows
  /// soon. Idempotent, any thread.
  virtual void close(error reason) = 0;

  /// "127.0.0.1:4711", for logs.
  virtual std::string peer_address() const = 0;

  /// Whether an authenticated cipher protects the bytes (then the link may skip its own checksum).
  virtual bool encrypted() const noexcept { return false; }
};

/// What a peer connection is for; travels in the upgrade.
enum class StreamPurpose : std::uint8_t { link, heartbeat };

/// A stream that has been connected, with the node id that the other side claims. The claim is
/// confirmed by the link handshake (and by TLS where it is on).
struct OpenStream {
  std::shared_ptr<Stream> stream;
  NodeId peer;
  StreamPurpose purpose = StreamPurpose::link;
};

/// Makes streams. One per node.
class Transport {
 public:
  using DialHandler = std::function<void(expected<OpenStream>)>;
  using AcceptHandler = std::function<void(OpenStream)>;

  virtual ~Transport() = default;

  /// The loop that streams for `purpose` run on. Heartbeats have their own thread.
  virtual Executor& executor(StreamPurpose purpose) = 0;

  /// Connects to `address` ("host:port"); `done` is called once, on the executor of `purpose`, within
  /// `timeout`.
  virtual void dial(std::string address, StreamPurpose purpose, Duration timeout,
                    DialHandler done) = 0;

  /// Called for each incoming peer stream, on the executor of its purpose. Set before listening.
  virtual void on_accept(AcceptHandler handler) = 0;
};

}  // namespace troupe::net
