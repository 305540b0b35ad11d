#include "net/heartbeat_connection.hpp"

#include <algorithm>

namespace troupe::net {

HeartbeatConnection::HeartbeatConnection(std::weak_ptr<HeartbeatOwner> owner, Executor& executor,
                                         OpenStream open, bool dialled,
                                         std::uint32_t frames_per_second)
    : owner_(std::move(owner)),
      executor_(executor),
      open_(std::move(open)),
      dialled_(dialled),
      frames_per_second_(std::max(frames_per_second, 1U)),
      heard_(executor.now()),
      window_start_(heard_) {}

void HeartbeatConnection::start() { open_.stream->start(shared_from_this()); }

bool HeartbeatConnection::ping() {
  const std::int64_t now = executor_.now().time_since_epoch().count();
  if (!send({HeartbeatKind::ping, sent_ + 1, now})) {
    return false;
  }
  ++sent_;
  sent_times_[sent_ % remembered] = now;
  return true;
}

void HeartbeatConnection::close(error reason) {
  if (!closing_) {
    closing_ = true;
    open_.stream->close(std::move(reason));
  }
}

/// Queues a frame and sends what fits. False when the peer is so slow that it is left out.
bool HeartbeatConnection::send(const HeartbeatFrame& frame) {
  if (closing_ || outgoing_.size() >= queued_frames * heartbeat_frame_size) {
    return false;
  }
  const HeartbeatBytes bytes = encode_heartbeat(frame);
  outgoing_.insert(outgoing_.end(), bytes.begin(), bytes.end());
  flush();
  return true;
}

void HeartbeatConnection::flush() {
  if (blocked_ || outgoing_.empty()) {
    return;
  }
  const ConstBuffer buffer{outgoing_};
  const std::size_t taken = open_.stream->write({&buffer, 1});
  blocked_ = taken < outgoing_.size();
  outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<std::ptrdiff_t>(taken));
}

MutableBuffer HeartbeatConnection::read_window() {
  return MutableBuffer{incoming_}.subspan(filled_);
}

void HeartbeatConnection::on_bytes(std::size_t count) {
  filled_ += count;
  if (filled_ < incoming_.size()) {
    return;
  }
  filled_ = 0;
  if (closing_) {
    return;
  }
  const auto frame = decode_heartbeat(incoming_);
  const error problem = frame ? handle(*frame) : frame.error();
  if (problem) {
    const auto self = shared_from_this();
    if (const auto owner = owner_.lock()) {
      owner->on_bad_peer(self, problem);
    }
    close(problem);
  }
}

error HeartbeatConnection::handle(const HeartbeatFrame& frame) {
  const TimePoint now = executor_.now();
  if (now - window_start_ >= std::chrono::seconds{1}) {
    window_start_ = now;
    window_frames_ = 0;
  }
  if (++window_frames_ > frames_per_second_) {
    return {ec::limit_exceeded, "heartbeat: more than " + std::to_string(frames_per_second_) +
                                    " frames in a second from " + short_string(open_.peer)};
  }
  if (frame.kind == HeartbeatKind::pong) {
    return answered(frame);
  }
  if (frame.sequence != last_ping_ + 1) {
    return {ec::malformed, "heartbeat: ping " + std::to_string(frame.sequence) + " follows " +
                               std::to_string(last_ping_)};
  }
  last_ping_ = frame.sequence;
  heard_ = now;
  send({HeartbeatKind::pong, frame.sequence, frame.time});
  if (const auto owner = owner_.lock()) {
    owner->on_ping(shared_from_this());
  }
  return {};
}

error HeartbeatConnection::answered(const HeartbeatFrame& frame) {
  const bool known = frame.sequence > answered_ && frame.sequence <= sent_ &&
                     sent_ - frame.sequence < remembered &&
                     sent_times_[frame.sequence % remembered] == frame.time;
  if (!known) {
    return {ec::malformed, "heartbeat: an answer to a ping that was not sent"};
  }
  answered_ = frame.sequence;
  const TimePoint now = executor_.now();
  heard_ = now;
  if (const auto owner = owner_.lock()) {
    owner->on_pong(shared_from_this(), now.time_since_epoch() - Duration{frame.time});
  }
  return {};
}

void HeartbeatConnection::on_writable() {
  blocked_ = false;
  flush();
}

void HeartbeatConnection::on_closed(const error& reason) {
  closing_ = true;
  const auto self = shared_from_this();
  if (const auto owner = owner_.lock()) {
    owner->on_end(self, reason);
  }
}

}  // namespace troupe::net
