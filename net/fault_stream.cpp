#include "net/fault_stream.hpp"

#include <algorithm>
#include <cstring>

namespace troupe::net {

namespace {

constexpr std::size_t scratch_size = std::size_t{64} << 10U;
/// Sent bytes are held in pieces of this size, so that a throttle is even.
constexpr std::size_t piece_size = std::size_t{8} << 10U;

}  // namespace

FaultStream::FaultStream(std::shared_ptr<FaultInjector> injector, std::shared_ptr<FaultPeer> peer,
                         std::shared_ptr<Stream> inner, Executor& executor, PhiloxStream random)
    : injector_(std::move(injector)),
      peer_(std::move(peer)),
      inner_(std::move(inner)),
      executor_(executor),
      random_(random) {}

FaultStream::~FaultStream() = default;

/// Takes over the peer's plan when it has changed. Under the mutex.
void FaultStream::refresh() {
  const std::uint64_t version = peer_->version.load(std::memory_order_acquire);
  if (version == seen_) {
    return;
  }
  seen_ = version;
  const FaultPlan before = plan_;
  {
    const std::lock_guard lock(peer_->mutex);
    plan_ = peer_->plan;
  }
  if (plan_.drop_every != before.drop_every) {
    until_drop_ = plan_.drop_every > 0 ? distance(plan_.drop_every) : 0;
  }
  if (plan_.corrupt_every != before.corrupt_every) {
    until_corrupt_ = plan_.corrupt_every > 0 ? distance(plan_.corrupt_every) : 0;
  }
}

void FaultStream::poke() {
  executor_.post([self = shared_from_this()] { self->wake(); });
}

void FaultStream::drop(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (!ended_) {
    ended_ = true;
    ++injector_->dropped_;
    inner_->close(error{ec::node_unreachable, why});
    poke();
  }
}

/// Under the mutex. Drops the connection when the seeded distance is used up.
void FaultStream::count_bytes(std::size_t count) {
  if (until_drop_ == 0 || ended_) {
    return;
  }
  if (until_drop_ > count) {
    until_drop_ -= count;
    return;
  }
  until_drop_ = 0;
  ended_ = true;
  ++injector_->dropped_;
  inner_->close(error{ec::node_unreachable, "fault injection: the connection is dropped (seeded)"});
  poke();
}

// -- outwards -------------------------------------------------------------------------------------

std::size_t FaultStream::write(std::span<const ConstBuffer> buffers) {
  std::size_t total = 0;
  for (const ConstBuffer& buffer : buffers) {
    total += buffer.size();
  }
  const std::lock_guard lock(mutex_);
  refresh();
  if (ended_) {
    return total;
  }
  const bool straight = out_.empty() && !plan_.partition_out && plan_.delay_out.count() == 0 &&
                        plan_.bytes_per_second == 0;
  if (straight) {
    const std::size_t taken = inner_->write(buffers);
    inner_full_ = taken < total;
    want_writable_ = taken < total;
    count_bytes(taken);
    return taken;
  }
  const std::size_t limit = injector_->limits_.held_out;
  const std::size_t taken = std::min(total, limit - std::min(limit, held_out_));
  std::size_t left = taken;
  for (ConstBuffer buffer : buffers) {
    buffer = buffer.first(std::min(buffer.size(), left));
    left -= buffer.size();
    for (; !buffer.empty(); buffer = buffer.subspan(std::min(buffer.size(), piece_size))) {
      hold_out(buffer.first(std::min(buffer.size(), piece_size)));
    }
  }
  if (!out_.empty()) {
    set_wake(out_.front().due);
  }
  want_writable_ = taken < total;
  count_bytes(taken);
  return taken;
}

/// Under the mutex.
void FaultStream::hold_out(ConstBuffer bytes) {
  line_free_ = std::max(line_free_, executor_.now());
  if (plan_.bytes_per_second > 0) {
    line_free_ += Duration{static_cast<Duration::rep>(static_cast<double>(bytes.size()) * 1e9 /
                                                      static_cast<double>(plan_.bytes_per_second))};
  }
  held_out_ += bytes.size();
  out_.push_back({line_free_ + plan_.delay_out, {bytes.begin(), bytes.end()}, 0});
}

/// Under the mutex. Sends what is due.
void FaultStream::pump_out() {
  const TimePoint now = executor_.now();
  while (!out_.empty() && !inner_full_ && !plan_.partition_out && !ended_) {
    Piece& piece = out_.front();
    if (piece.due > now) {
      set_wake(piece.due);
      return;
    }
    const ConstBuffer rest = ConstBuffer{piece.bytes}.subspan(piece.offset);
    const std::size_t taken = inner_->write({&rest, 1});
    piece.offset += taken;
    held_out_ -= taken;
    if (taken < rest.size()) {
      inner_full_ = true;
      return;
    }
    out_.pop_front();
  }
}

void FaultStream::on_writable() {
  {
    const std::lock_guard lock(mutex_);
    inner_full_ = false;
  }
  wake();
}

void FaultStream::close(error reason) {
  const std::lock_guard lock(mutex_);
  if (!ended_) {
    ended_ = true;
    inner_->close(std::move(reason));
    // The inner stream may have ended before, held back by a partition.
    poke();
  }
}

// -- inwards --------------------------------------------------------------------------------------

void FaultStream::start(std::shared_ptr<StreamSink> sink) {
  const std::lock_guard lock(mutex_);
  sink_ = std::move(sink);
  if (!started_) {
    started_ = true;
    inner_->start(shared_from_this());
  }
}

MutableBuffer FaultStream::read_window() {
  bool straight = false;
  {
    const std::lock_guard lock(mutex_);
    refresh();
    straight = in_.empty() && !plan_.partition_in && plan_.delay_in.count() == 0;
  }
  if (straight && !closed_) {
    direct_ = sink_->read_window();
    return direct_;
  }
  direct_ = {};
  scratch_.resize(scratch_size);
  return scratch_;
}

void FaultStream::on_bytes(std::size_t count) {
  const auto self = shared_from_this();
  if (closed_) {
    return;
  }
  std::byte* data = direct_.empty() ? scratch_.data() : direct_.data();
  {
    const std::lock_guard lock(mutex_);
    refresh();
    maybe_corrupt(data, count);
    count_bytes(count);
    if (ended_) {
      return;  // `on_closed` follows.
    }
    if (direct_.empty()) {
      in_.push_back(
          {executor_.now() + plan_.delay_in, std::vector<std::byte>(data, data + count), 0});
      held_in_ += count;
      if (held_in_ > injector_->limits_.held_in) {
        ended_ = true;
        ++injector_->dropped_;
        inner_->close(error{ec::limit_exceeded,
                            "fault injection: more bytes held back than the limit allows"});
        return;
      }
    }
  }
  if (direct_.empty()) {
    wake();
  } else {
    direct_ = {};
    sink_->on_bytes(count);
  }
}

/// Under the mutex.
void FaultStream::maybe_corrupt(std::byte* data, std::size_t count) {
  const auto flip = [&](std::size_t index) {
    if (inner_->encrypted()) {
      // Damage on the wire never gets past the cipher: the connection breaks instead.
      ended_ = true;
      inner_->close(error{ec::malformed, "fault injection: damaged record (bad MAC)"});
      return;
    }
    data[index] ^= static_cast<std::byte>(1U << random_.below(8));
    ++injector_->corrupted_;
  };
  if (peer_->corrupt_next.load(std::memory_order_relaxed) && peer_->corrupt_next.exchange(false)) {
    flip(static_cast<std::size_t>(random_.below(count)));
  }
  if (until_corrupt_ == 0) {
    return;
  }
  std::uint64_t position = until_corrupt_;
  while (position <= count) {
    flip(static_cast<std::size_t>(position - 1));
    position += distance(plan_.corrupt_every);
  }
  until_corrupt_ = position - count;
}

/// Hands one held piece to the sink. False when none is due.
bool FaultStream::deliver_piece() {
  Piece piece;
  {
    const std::lock_guard lock(mutex_);
    if (in_.empty() || plan_.partition_in || ended_) {
      return false;
    }
    if (in_.front().due > executor_.now()) {
      set_wake(in_.front().due);
      return false;
    }
    piece = std::move(in_.front());
    in_.pop_front();
    held_in_ -= piece.bytes.size();
  }
  while (piece.offset < piece.bytes.size() && !closed_) {
    const std::shared_ptr<StreamSink> sink = sink_;
    const MutableBuffer window = sink->read_window();
    const std::size_t count = std::min(window.size(), piece.bytes.size() - piece.offset);
    if (count == 0) {
      drop("the sink gave an empty read window");
      return false;
    }
    std::memcpy(window.data(), piece.bytes.data() + piece.offset, count);
    piece.offset += count;
    sink->on_bytes(count);
    const std::lock_guard lock(mutex_);
    if (ended_) {
      return false;
    }
  }
  return true;
}

void FaultStream::pump_in() {
  while (deliver_piece()) {
  }
  bool over = false;
  {
    const std::lock_guard lock(mutex_);
    over = inner_reason_.has_value() && (in_.empty() || ended_);
  }
  if (over && !closed_) {
    closed_ = true;
    const std::shared_ptr<StreamSink> sink = std::move(sink_);
    sink_ = nullptr;
    sink->on_closed(*inner_reason_);
  }
}

/// The peer's end comes after what it had sent; one that this side made comes at once.
void FaultStream::on_closed(const error& reason) {
  {
    const std::lock_guard lock(mutex_);
    inner_reason_ = reason;
    out_.clear();
    held_out_ = 0;
    refresh();
    if (plan_.partition_in && in_.empty() && !ended_) {
      // Nobody tells this side during a partition; its own writes or `partition_death` do.
      in_.push_back({executor_.now(), {}, 0});
    }
  }
  wake();
}

// -- time -----------------------------------------------------------------------------------------

/// Under the mutex. Makes sure that `wake` runs at `when` or earlier.
void FaultStream::set_wake(TimePoint when) {
  if (wake_at_ && *wake_at_ <= when) {
    return;
  }
  wake_at_ = when;
  executor_.schedule(std::max(when - executor_.now(), Duration{0}),
                     [weak = weak_from_this(), when] {
                       if (const auto self = weak.lock()) {
                         {
                           const std::lock_guard lock(self->mutex_);
                           if (self->wake_at_ == when) {
                             self->wake_at_.reset();
                           }
                         }
                         self->wake();
                       }
                     });
}

/// On the executor: moves whatever may move.
void FaultStream::wake() {
  const auto self = shared_from_this();
  bool writable = false;
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || !sink_) {
      return;
    }
    refresh();
    pump_out();
    check_death(executor_.now());
    writable = want_writable_ && !inner_full_ && room_out() && !ended_ && !inner_reason_;
    if (writable) {
      want_writable_ = false;
    }
  }
  if (writable) {
    sink_->on_writable();
  }
  pump_in();
}

/// Under the mutex. Bytes that a partition holds for too long end the stream, as with TCP.
void FaultStream::check_death(TimePoint now) {
  const bool held = (plan_.partition_out && !out_.empty()) || (plan_.partition_in && !in_.empty());
  if (!held || ended_) {
    held_since_.reset();
    return;
  }
  if (!held_since_) {
    held_since_ = now;
  }
  const TimePoint end = *held_since_ + injector_->limits_.partition_death;
  if (now < end) {
    set_wake(end);
    return;
  }
  ended_ = true;
  ++injector_->dropped_;
  const error reason{ec::timeout, "fault injection: the partition outlasted the connection"};
  if (inner_reason_) {
    inner_reason_ = reason;
  } else {
    inner_->close(reason);
  }
}

}  // namespace troupe::net
