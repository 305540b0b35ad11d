// Why: one heartbeat connection: framing, pings and pongs, limits on what the peer may send. Which
// of several connections to a peer is kept is decided elsewhere (net/heartbeat.cpp).
// Thread-safety: only on the heartbeat executor.
#pragma once

#include <functional>

#include "net/heartbeat_frame.hpp"
#include "net/stream.hpp"

namespace troupe::net {

class HeartbeatConnection;
using HeartbeatConnectionPtr = std::shared_ptr<HeartbeatConnection>;

/// What a connection tells its owner. The owner may close the connection from inside.
class HeartbeatOwner {
 public:
  virtual ~HeartbeatOwner() = default;
  virtual void on_ping(const HeartbeatConnectionPtr& connection) = 0;
  virtual void on_pong(const HeartbeatConnectionPtr& connection, Duration round_trip) = 0;
  virtual void on_bad_peer(const HeartbeatConnectionPtr& connection, const error& reason) = 0;
  virtual void on_end(const HeartbeatConnectionPtr& connection, const error& reason) = 0;
};

class HeartbeatConnection final : public StreamSink,
                                  public std::enable_shared_from_this<HeartbeatConnection> {
 public:
  HeartbeatConnection(std::weak_ptr<HeartbeatOwner> owner, Executor& executor, OpenStream open,
                      bool dialled, std::uint32_t frames_per_second);

  void start();
  /// Sends a ping unless the peer does not read. True when it went out.
  bool ping();
  /// Nothing is delivered to the owner afterwards but `on_end`.
  void close(error reason);

  const NodeId& peer() const noexcept { return open_.peer; }
  bool dialled() const noexcept { return dialled_; }
  bool closing() const noexcept { return closing_; }
  /// Since when nothing was heard: the opening or the last valid frame.
  TimePoint heard() const noexcept { return heard_; }

  /// Kept by the owner: whether it has counted a ping of this connection.
  bool pinged = false;

  MutableBuffer read_window() override;
  void on_bytes(std::size_t count) override;
  void on_writable() override;
  void on_closed(const error& reason) override;

 private:
  static constexpr std::size_t remembered = 256;
  static constexpr std::size_t queued_frames = 16;

  bool send(const HeartbeatFrame& frame);
  void flush();
  error handle(const HeartbeatFrame& frame);
  error answered(const HeartbeatFrame& frame);

  std::weak_ptr<HeartbeatOwner> owner_;
  Executor& executor_;
  OpenStream open_;
  bool dialled_;
  bool closing_ = false;
  std::uint32_t frames_per_second_;
  TimePoint heard_;

  HeartbeatBytes incoming_{};
  std::size_t filled_ = 0;
  TimePoint window_start_;
  std::uint32_t window_frames_ = 0;
  std::uint64_t last_ping_ = 0;

  std::vector<std::byte> outgoing_;
  bool blocked_ = false;
  std::uint64_t sent_ = 0;
  std::uint64_t answered_ = 0;
  std::array<std::int64_t, remembered> sent_times_{};
};

}  // namespace troupe::net
