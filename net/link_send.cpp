// The sending half of a link: queues, frames, and the one writer at a time.
#include <algorithm>
#include <cstring>

#include "net/link.hpp"
#include "net/link_credit.hpp"

namespace troupe::net {

namespace {

// Also bounds what an idle link keeps per lane.
constexpr std::size_t arena_size = std::size_t{64} << 10U;
constexpr std::size_t max_buffers = 64;
// One turn of the executor writes at most this much before others get theirs.
constexpr std::size_t turn_budget = std::size_t{4} << 20U;
constexpr std::size_t fragment_head = sizeof(FrameHeader) + sizeof(FragmentHeader);
constexpr std::array<std::byte, 8> zeros{};
// System records (reports, releases) are not held back; an honest peer takes them as fast as it causes them.
constexpr std::size_t owed_limit = std::size_t{64} << 20U;

std::size_t total_size(std::span<const ConstBuffer> pieces) {
  std::size_t result = 0;
  for (const auto& piece : pieces) {
    result += piece.size();
  }
  return result;
}

}  // namespace

SendResult Link::send(Lane lane, RecordHeader header, std::span<const ConstBuffer> pieces,
                      std::shared_ptr<const void> owner, SendForce force) {
  const std::size_t body = total_size(pieces);
  const std::size_t size = sizeof(RecordHeader) + padded(body);
  const auto index = static_cast<std::size_t>(lane);
  // The limit on the body also keeps `size` within the header's 32 bits.
  if (body > config_.max_message || body > 0xFFFFFFF0U) {
    return SendResult::too_large;
  }
  header.size = static_cast<std::uint32_t>(body);
  Lock lock{mutex_};
  if (state_.load(std::memory_order_relaxed) == LinkState::down) {
    return SendResult::down;
  }
  if (peer_max_message_ != 0 && body > peer_max_message_) {
    return SendResult::too_large;
  }
  SendLane& out = lanes_[index];
  const std::size_t bound = config_.queue_bytes[index] * (force == SendForce::response ? 4 : 1);
  // One record may overshoot, so that whoever was told `writable` can send his, whatever its size.
  if (force != SendForce::system && out.queued >= bound) {
    out.blocked = true;
    ++counters_.would_block;
    return SendResult::would_block;
  }
  out.queued += size;
  ++counters_.records_sent;
  if (size >= config_.large_record) {
    append_large(out, header, pieces, std::move(owner));
  } else {
    append_small(out, header, pieces);
    if (force == SendForce::system) {
      out.queue.back().frame.system += size;
      out.system += size;
    }
  }
  if (stream_ && stream_writable_ && !writing_) {
    if (quiet()) {
      write_loop(lock, 1);
    } else if (!flush_posted_) {
      post_flush(lock);
    }
  }
  return SendResult::ok;
}

std::byte* Link::reserve(SendLane& lane, std::size_t size) {
  if (!lane.arena || lane.arena.capacity - lane.arena_used < size) {
    lane.arena = BlockPool::shared().allocate(std::max(arena_size, size));
    lane.arena_used = 0;
  }
  std::byte* result = lane.arena.get() + lane.arena_used;
  lane.arena_used += size;
  return result;
}

void Link::append_small(SendLane& lane, const RecordHeader& header,
                        std::span<const ConstBuffer> pieces) {
  const std::size_t size = sizeof(RecordHeader) + padded(header.size);
  std::byte* to = nullptr;
  if (lane.open) {
    // The open frame is the last thing in the arena, so it can grow in place.
    Frame& frame = lane.queue.back().frame;
    if (frame.head_size - sizeof(FrameHeader) + size <= config_.coalesce &&
        lane.arena.capacity - lane.arena_used >= size) {
      to = reserve(lane, size);
      frame.head_size += size;
      ++lane.queue.back().records;
    }
  }
  if (to == nullptr) {
    std::byte* head = reserve(lane, sizeof(FrameHeader) + size);
    QueueItem item;
    item.frame.block = lane.arena.data;
    item.frame.head = head;
    item.frame.head_size = sizeof(FrameHeader) + size;
    lane.queue.push_back(std::move(item));
    lane.open = true;
    to = head + sizeof(FrameHeader);
  }
  write_pod(to, header);
  to += sizeof(RecordHeader);
  for (const auto& piece : pieces) {
    if (!piece.empty()) {
      std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
    }
  }
  std::memset(to, 0, padded(header.size) - header.size);
}

void Link::append_large(SendLane& lane, const RecordHeader& header,
                        std::span<const ConstBuffer> pieces, std::shared_ptr<const void> owner) {
  auto large = std::make_shared<LargeRecord>();
  large->header = header;
  large->total = sizeof(RecordHeader) + padded(header.size);
  large->pieces.emplace_back(reinterpret_cast<const std::byte*>(&large->header),
                             sizeof(RecordHeader));
  if (owner) {
    large->pieces.insert(large->pieces.end(), pieces.begin(), pieces.end());
    large->owner = std::move(owner);
  } else {
    const Block copy = BlockPool::shared().allocate(header.size);
    std::byte* to = copy.get();
    for (const auto& piece : pieces) {
      std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
    }
    large->pieces.emplace_back(copy.get(), header.size);
    large->owner = copy.data;
  }
  if (const auto padding = padded(header.size) - header.size; padding > 0) {
    large->pieces.emplace_back(zeros.data(), padding);
  }
  QueueItem item;
  item.large = std::move(large);
  lane.queue.push_back(std::move(item));
  lane.open = false;
}

// -- picking what to write next (mutex held) -----------------------------------------------------------

bool Link::has_output() const {
  return has_current_ || next_unsent_ < next_sequence_ || !lanes_[0].queue.empty() ||
         !lanes_[1].queue.empty() || ack_due_;
}

bool Link::quiet() const {
  const auto idle = executor_.now() - last_write_;
  return idle >= (last_records_ <= 2 ? config_.idle_flush : config_.idle_flush * 5);
}

bool Link::pick_frame() {
  if (next_unsent_ < next_sequence_ && !unacked_.empty()) {
    // After a reconnect: once more what the peer has not received.
    const std::uint64_t first = unacked_.front().sequence;
    next_unsent_ = std::max(next_unsent_, first);
    if (next_unsent_ < next_sequence_) {
      current_ = unacked_[next_unsent_ - first];
      if (current_.sequence <= sent_sequence_) {
        ++counters_.frames_replayed;
      }
      return true;
    }
  }
  for (std::size_t i = 0; i < lane_count; ++i) {
    if (pick_from_lane(lanes_[i], i)) {
      return true;
    }
  }
  if (ack_due_) {
    Frame frame;
    frame.type = FrameType::ack;
    frame.block = std::shared_ptr<std::byte>(new std::byte[sizeof(FrameHeader)],
                                             std::default_delete<std::byte[]>());
    frame.head = frame.block.get();
    frame.head_size = sizeof(FrameHeader);
    current_ = std::move(frame);
    return true;
  }
  return false;
}

bool Link::pick_from_lane(SendLane& lane, std::size_t index) {
  if (lane.queue.empty()) {
    return false;
  }
  QueueItem& item = lane.queue.front();
  if (item.large) {
    return cut_fragment(lane, index);
  }
  if (lane.sent + item.frame.credit() > lane.credit) {
    return false;
  }
  Frame frame = std::move(item.frame);
  last_records_ = item.records;
  lane.queue.pop_front();
  if (lane.queue.empty()) {
    lane.open = false;
  }
  frame.lane = static_cast<Lane>(index);
  commit_frame(std::move(frame));
  return true;
}

bool Link::cut_fragment(SendLane& lane, std::size_t index) {
  QueueItem& item = lane.queue.front();
  const std::size_t left = item.large->total - item.offset;
  const std::size_t credit = lane.credit > lane.sent ? lane.credit - lane.sent : 0;
  const std::size_t whole = std::min(left, peer_max_fragment_);
  std::size_t size = std::min(whole, credit);
  if (size < whole) {
    size &= ~std::size_t{7};
    if (size < 4096) {
      return false;  // wait for more credit instead of sending crumbs
    }
  }
  if (!header_arena_ || header_arena_.capacity - header_arena_used_ < fragment_head) {
    header_arena_ = BlockPool::shared().allocate(4096);
    header_arena_used_ = 0;
  }
  Frame frame;
  frame.type = FrameType::fragment;
  frame.lane = static_cast<Lane>(index);
  frame.block = header_arena_.data;
  frame.head = header_arena_.get() + header_arena_used_;
  frame.head_size = fragment_head;
  header_arena_used_ += fragment_head;
  frame.large = item.large;
  frame.offset = item.offset;
  frame.data_size = size;
  write_pod(frame.head + sizeof(FrameHeader), FragmentHeader{item.large->total, item.offset});
  item.offset += size;
  if (item.offset == item.large->total) {
    lane.queue.pop_front();
  }
  commit_frame(std::move(frame));
  return true;
}

void Link::commit_frame(Frame frame) {
  frame.sequence = next_sequence_++;
  lanes_[static_cast<std::size_t>(frame.lane)].sent += frame.credit();
  current_ = frame;
  if (unacked_.empty()) {
    last_progress_ = executor_.now();
  }
  // The writer computes the checksum before anybody could send the frame again.
  frame.checked = true;
  unacked_.push_back(std::move(frame));
}

// -- writing --------------------------------------------------------------------------------------------

namespace {

// The parts of `pieces` that make up [offset, offset + size) of their concatenation.
template <class Fn>
void slice_pieces(std::span<const ConstBuffer> pieces, std::size_t offset, std::size_t size,
                  Fn fn) {
  for (const auto& piece : pieces) {
    if (size == 0) {
      return;
    }
    if (offset >= piece.size()) {
      offset -= piece.size();
      continue;
    }
    const std::size_t count = std::min(size, piece.size() - offset);
    if (!fn(piece.subspan(offset, count))) {
      return;
    }
    offset = 0;
    size -= count;
  }
}

}  // namespace

void Link::prepare(Frame& frame, bool encrypted) {
  FrameHeader header;
  if (frame.checked) {
    header = read_pod<FrameHeader>(frame.head);
  } else {
    header.length = static_cast<std::uint32_t>(frame.size() - sizeof(FrameHeader));
    header.type = frame.type;
    header.lane = static_cast<std::uint8_t>(frame.lane);
    header.sequence = frame.sequence;
    if (encrypted) {
      header.flags = frame_flags::unchecked;
    }
    const std::span<const std::byte> inline_part{frame.head + sizeof(FrameHeader),
                                                 frame.head_size - sizeof(FrameHeader)};
    if (encrypted) {
      // The cipher sees to it.
    } else if (frame.large) {
      ChecksumStream check;
      check.update(inline_part);
      slice_pieces(frame.large->pieces, frame.offset, frame.data_size, [&](ConstBuffer part) {
        check.update(part);
        return true;
      });
      header.payload_check = check.value();
    } else {
      header.payload_check = checksum(inline_part);
    }
    frame.checked = true;
  }
  header.ack = received_sequence_.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < lane_count; ++i) {
    header.credit[i] = credit_->advertise(i);
  }
  ack_sent_.store(header.ack, std::memory_order_release);
  write_frame_header(frame.head, header);
}

std::size_t Link::collect(const Frame& frame, std::size_t offset, ConstBuffer* buffers,
                          std::size_t limit, std::size_t& bytes) const {
  std::size_t count = 0;
  bytes = 0;
  if (offset < frame.head_size) {
    buffers[count++] = {frame.head + offset, frame.head_size - offset};
    bytes = frame.head_size - offset;
    offset = frame.head_size;
  }
  if (frame.large) {
    const std::size_t skip = offset - frame.head_size;
    slice_pieces(frame.large->pieces, frame.offset + skip, frame.data_size - skip,
                 [&](ConstBuffer part) {
                   buffers[count++] = part;
                   bytes += part.size();
                   return count < limit;
                 });
  }
  return count;
}

// Called with the lock held and no other writer; returns without the lock. Writes until the stream is
// full, nothing is left or the budget is used up; what is left then is the executor's.
void Link::write_loop(Lock& lock, std::size_t budget) {
  Frame finished;  // owners of messages must not be dropped under the lock
  std::size_t written = 0;
  writing_ = true;
  while (stream_ && stream_writable_ && written < budget) {
    bool fresh = false;
    if (!has_current_) {
      if (!pick_frame()) {
        break;
      }
      has_current_ = true;
      current_offset_ = 0;
      fresh = true;
      ack_due_ = false;  // rides on any frame
      sent_sequence_ = std::max(sent_sequence_, current_.sequence);
    }
    const auto stream = stream_;
    const auto epoch = stream_epoch_;
    const auto writable_epoch = writable_epoch_;
    lock.unlock();
    finished = {};
    if (fresh) {
      prepare(current_, stream->encrypted());
    }
    std::array<ConstBuffer, max_buffers> buffers;
    std::size_t offered = 0;
    const std::size_t count =
        collect(current_, current_offset_, buffers.data(), buffers.size(), offered);
    const std::size_t taken = stream->write({buffers.data(), count});
    const auto now = executor_.now();
    lock.lock();
    last_write_ = now;
    if (epoch != stream_epoch_) {
      finished = std::move(current_);
      has_current_ = false;
      continue;
    }
    written += taken;
    counters_.bytes_sent += taken;
    current_offset_ += taken;
    if (current_offset_ == current_.size()) {
      ++counters_.frames_sent;
      if (current_.sequence != 0) {
        next_unsent_ = current_.sequence + 1;
      }
      finished = std::move(current_);
      has_current_ = false;
    }
    if (taken < offered && writable_epoch == writable_epoch_) {
      stream_writable_ = false;
    }
  }
  writing_ = false;
  if (stream_ && stream_writable_ && !flush_posted_ && written >= budget && has_output()) {
    post_flush(lock);
  } else {
    lock.unlock();
  }
  // `finished` goes here, without the lock.
}

void Link::post_flush(Lock& lock) {
  flush_posted_ = true;
  lock.unlock();
  executor_.post([weak = weak_from_this()] {
    if (auto self = weak.lock()) {
      self->flush();
    }
  });
}

void Link::flush() {
  Lock lock{mutex_};
  flush_posted_ = false;
  if (stream_ && stream_writable_ && !writing_) {
    write_loop(lock, turn_budget);
  }
}

void Link::send_ack() {
  Lock lock{mutex_};
  ack_due_ = true;
  if (stream_ && stream_writable_ && !writing_) {
    write_loop(lock, turn_budget);
  }
}

void Link::on_stream_writable(const Stream* stream) {
  Lock lock{mutex_};
  if (stream_.get() != stream) {
    return;
  }
  ++writable_epoch_;
  stream_writable_ = true;
  if (!writing_) {
    write_loop(lock, turn_budget);
  }
}

LinkCounters Link::counters() const {
  const Lock lock{mutex_};
  LinkCounters result = counters_;
  result.records_received = records_received_.load(std::memory_order_relaxed);
  result.frames_received = frames_received_.load(std::memory_order_relaxed);
  result.frames_duplicate = frames_duplicate_.load(std::memory_order_relaxed);
  result.bytes_received = bytes_received_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < lane_count; ++i) {
    result.queued_bytes[i] = lanes_[i].queued;
  }
  return result;
}

std::size_t Link::queued_bytes(Lane lane) const {
  const Lock lock{mutex_};
  return lanes_[static_cast<std::size_t>(lane)].queued;
}

bool Link::request_writable(Lane lane) {
  const auto index = static_cast<std::size_t>(lane);
  const Lock lock{mutex_};
  SendLane& out = lanes_[index];
  if (state_.load() == LinkState::down) {
    return false;
  }
  out.blocked = out.blocked || out.queued >= config_.queue_bytes[index];
  return !out.blocked;
}

bool Link::overwhelmed() const {
  const Lock lock{mutex_};
  return lanes_[0].system > owed_limit || lanes_[1].system > owed_limit;
}

bool Link::writable(Lane lane) const {
  const auto index = static_cast<std::size_t>(lane);
  const Lock lock{mutex_};
  return state_.load() != LinkState::down && !lanes_[index].blocked &&
         lanes_[index].queued < config_.queue_bytes[index];
}

}  // namespace troupe::net
