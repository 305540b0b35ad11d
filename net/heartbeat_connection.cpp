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
  HeartbeatFrame frame;
  frame.kind = HeartbeatKind::ping;
  frame.sequence = sent_ + 1;
  frame.time = now;
  if (!send(frame)) {
    return false;
  }
  ++sent_;
  sent_times_[sent_ % remembered] = now;
  return true;
}

void HeartbeatConnection::answer() {
  if (owes_answer_) {
    HeartbeatFrame frame;
    frame.kind = HeartbeatKind::pong;
    send(frame);
  }
}

void HeartbeatConnection::close(error reason) {
  if (!closing_) {
    closing_ = true;
    open_.stream->close(std::move(reason));
  }
}

/// Queues a frame, with the answer that is owed, and sends what fits. False when the peer is so slow
/// that it is left out.
bool HeartbeatConnection::send(HeartbeatFrame frame) {
  if (closing_ || outgoing_.size() >= queued_frames * heartbeat_frame_size) {
    return false;
  }
  if (owes_answer_) {
    owes_answer_ = false;
    frame.answer_sequence = last_ping_;
    frame.answer_time = last_ping_time_;
    frame.answer_held = (executor_.now() - last_ping_at_).count();
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
  std::size_t used = 0;
  if (const error problem = closing_ ? error{} : take_frames(used)) {
    const auto self = shared_from_this();
    if (const auto owner = owner_.lock()) {
      owner->on_bad_peer(self, problem);
    }
    close(problem);
  }
  if (closing_) {
    filled_ = 0;
    return;
  }
  std::copy(incoming_.begin() + static_cast<std::ptrdiff_t>(used),
            incoming_.begin() + static_cast<std::ptrdiff_t>(filled_), incoming_.begin());
  filled_ -= used;
}

error HeartbeatConnection::take_frames(std::size_t& used) {
  while (!closing_ && filled_ - used >= heartbeat_frame_size) {
    const auto frame = decode_heartbeat(std::span<const std::byte, heartbeat_frame_size>{
        incoming_.data() + used, heartbeat_frame_size});
    if (!frame) {
      return frame.error();
    }
    used += heartbeat_frame_size;
    if (error problem = handle(*frame)) {
      return problem;
    }
  }
  return closing_ ? error{}
                  : check_heartbeat_start(
                        std::span<const std::byte>{incoming_}.subspan(used, filled_ - used));
}

error HeartbeatConnection::handle(const HeartbeatFrame& frame) {
  const TimePoint now = executor_.now();
  if (now - window_start_ >= std::chrono::seconds{1}) {
    window_start_ = now;
    window_count_ = 0;
  }
  if (++window_count_ > frames_per_second_) {
    return {ec::limit_exceeded, "heartbeat: more than " + std::to_string(frames_per_second_) +
                                    " frames in a second from " + short_string(open_.peer)};
  }
  HeartbeatHeard heard;
  heard.ping = frame.kind == HeartbeatKind::ping;
  if (heard.ping && frame.sequence != last_ping_ + 1) {
    return {ec::malformed, "heartbeat: ping " + std::to_string(frame.sequence) + " follows " +
                               std::to_string(last_ping_)};
  }
  if (!heard.ping || frame.answer_sequence != 0) {
    if (error problem = answered(frame, heard)) {
      return problem;
    }
  }
  heard_ = now;
  if (heard.ping) {
    last_ping_ = frame.sequence;
    last_ping_time_ = frame.time;
    last_ping_at_ = now;
    owes_answer_ = true;
  }
  if (const auto owner = owner_.lock()) {
    owner->on_heard(shared_from_this(), heard);
  }
  return {};
}

error HeartbeatConnection::answered(const HeartbeatFrame& frame, HeartbeatHeard& heard) {
  const std::uint64_t sequence = frame.answer_sequence;
  const bool known = sequence > answered_ && sequence <= sent_ && sent_ - sequence < remembered &&
                     sent_times_[sequence % remembered] == frame.answer_time;
  if (!known || frame.answer_held < 0) {
    return {ec::malformed, "heartbeat: an answer to a ping that was not sent"};
  }
  answered_ = sequence;
  heard.answer = true;
  heard.sent = TimePoint{Duration{frame.answer_time}};
  // Two clocks may run at different speeds.
  heard.round_trip =
      std::max(executor_.now() - heard.sent - Duration{frame.answer_held}, Duration{0});
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
