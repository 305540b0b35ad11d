// Why: one heartbeat connection: framing, pings and answers, limits on what the peer may send.
// Which of several connections to a peer is kept is decided elsewhere (net/heartbeat.cpp).
// Thread-safety: only on the heartbeat executor.
#pragma once

#include <functional>
#include <optional>

#include "net/heartbeat_frame.hpp"
#include "net/stream.hpp"

namespace troupe::net {

class HeartbeatConnection;
using HeartbeatConnectionPtr = std::shared_ptr<HeartbeatConnection>;

/// What a valid frame said.
struct HeartbeatHeard {
  bool ping = false;
  /// The peer has answered a ping.
  bool answer = false;
  /// When that ping was sent; the peer's process was alive after that.
  TimePoint sent;
  Duration round_trip{0};
};

/// What a connection tells its owner. The owner may close the connection from inside.
class HeartbeatOwner {
 public:
  virtual ~HeartbeatOwner() = default;
  virtual void on_heard(const HeartbeatConnectionPtr& connection, const HeartbeatHeard& heard) = 0;
  virtual void on_bad_peer(const HeartbeatConnectionPtr& connection, const error& reason) = 0;
  virtual void on_end(const HeartbeatConnectionPtr& connection, const error& reason) = 0;
};

class HeartbeatConnection final : public StreamSink,
                                  public std::enable_shared_from_this<HeartbeatConnection> {
 public:
  HeartbeatConnection(std::weak_ptr<HeartbeatOwner> owner, Executor& executor, OpenStream open,
                      bool dialled, std::uint32_t frames_per_second);

  void start();
  /// Sends a ping, with the answer to the peer's newest one, unless the peer does not read. True
  /// when it went out.
  bool ping();
  /// Answers the peer's newest ping now instead of with the next ping.
  void answer();
  /// Nothing is delivered to the owner afterwards but `on_end`.
  void close(error reason);

  const NodeId& peer() const noexcept { return open_.peer; }
  bool dialled() const noexcept { return dialled_; }
  bool closing() const noexcept { return closing_; }
  /// Since when nothing was heard: the opening or the last valid frame.
  TimePoint heard() const noexcept { return heard_; }
  /// When the last ping went out; the clock's start before the first.
  TimePoint pinged() const noexcept { return TimePoint{Duration{sent_times_[sent_ % remembered]}}; }
  /// Pings that the peer has sent here.
  std::uint64_t pings_heard() const noexcept { return last_ping_; }

  MutableBuffer read_window() override;
  void on_bytes(std::size_t count) override;
  void on_writable() override;
  void on_closed(const error& reason) override;

 private:
  static constexpr std::size_t remembered = 256;
  static constexpr std::size_t queued_frames = 16;
  /// More than one frame, so that a read which empties the socket is seen to have done so.
  static constexpr std::size_t window_frames = 4;

  bool send(HeartbeatFrame frame);
  void flush();
  error take_frames(std::size_t& used);
  error handle(const HeartbeatFrame& frame);
  error answered(const HeartbeatFrame& frame, HeartbeatHeard& heard);

  std::weak_ptr<HeartbeatOwner> owner_;
  Executor& executor_;
  OpenStream open_;
  bool dialled_;
  bool closing_ = false;
  std::uint32_t frames_per_second_;
  TimePoint heard_;

  std::array<std::byte, window_frames * heartbeat_frame_size> incoming_{};
  std::size_t filled_ = 0;
  TimePoint window_start_;
  std::uint32_t window_count_ = 0;
  std::uint64_t last_ping_ = 0;
  std::int64_t last_ping_time_ = 0;
  TimePoint last_ping_at_;
  bool owes_answer_ = false;

  std::vector<std::byte> outgoing_;
  bool blocked_ = false;
  std::uint64_t sent_ = 0;
  std::uint64_t answered_ = 0;
  std::array<std::int64_t, remembered> sent_times_{};
};

}  // namespace troupe::net
