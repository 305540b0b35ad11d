// The life of a link, and its receiving half.
#include "net/link.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "net/link_credit.hpp"

namespace troupe::net {

namespace {

std::string fragment_text(const FragmentHeader& fragment) {
  return "fragment at " + std::to_string(fragment.offset) + " of " +
         std::to_string(fragment.total) + " bytes does not continue the message before it";
}

}  // namespace

Link::Link(Executor& executor, const LinkConfig& config, const NodeId& self, const NodeId& peer,
           std::uint64_t session)
    : executor_(executor),
      config_(config),
      self_(self),
      peer_(peer),
      session_(session),
      credit_(std::make_shared<Credit>(config.window_bytes)),
      peer_max_fragment_(config.max_fragment) {}

Link::~Link() { credit_->disconnect(); }

error Link::down_reason() const {
  const Lock lock{mutex_};
  return down_reason_;
}

FrameLimits Link::frame_limits() const {
  FrameLimits limits;
  limits.max_payload = std::max(config_.max_fragment, config_.coalesce) + sizeof(FragmentHeader) +
                       sizeof(RecordHeader);
  limits.max_message = config_.max_message;
  return limits;
}

void Link::describe(Hello& hello) const {
  const Lock lock{mutex_};
  hello.node = self_;
  hello.session = session_;
  hello.expects = peer_session_;
  hello.connection = connection_ + 1;
  hello.received = received_sequence_.load();
  for (std::size_t i = 0; i < lane_count; ++i) {
    hello.credit[i] = credit_->advertise(i);
  }
  hello.max_message = config_.max_message;
  hello.max_frame = static_cast<std::uint32_t>(frame_limits().max_payload);
}

SessionState Link::session() const {
  const Lock lock{mutex_};
  SessionState result;
  result.exists = true;
  result.own = session_;
  result.peer = peer_session_;
  result.connected = stream_ != nullptr;
  result.connection = connection_;
  result.initiator = initiator_;
  return result;
}

error Link::attach(std::shared_ptr<Stream> stream, const Hello& peer, std::uint64_t connection,
                   const NodeId& initiator) {
  std::vector<Frame> dropped;
  std::shared_ptr<Stream> old;
  {
    Lock lock{mutex_};
    if (state_.load() == LinkState::down) {
      return down_reason_;
    }
    if (auto err = drop_acked(peer.received, dropped)) {
      return err;
    }
    credit_->connect(weak_from_this());
    old = std::exchange(stream_, std::move(stream));
    ++stream_epoch_;
    stream_writable_ = true;
    if (!writing_) {
      has_current_ = false;
      dropped.push_back(std::move(current_));
    }
    next_unsent_ = unacked_.empty() ? next_sequence_ : unacked_.front().sequence;
    for (std::size_t i = 0; i < lane_count; ++i) {
      lanes_[i].credit = std::max(lanes_[i].credit, peer.credit[i]);
    }
    peer_session_ = peer.session;
    connection_ = connection;
    initiator_ = initiator;
    peer_max_message_ = peer.max_message;
    peer_max_fragment_ =
        std::min<std::size_t>(config_.max_fragment,
                              peer.max_frame - sizeof(FragmentHeader) - sizeof(RecordHeader)) &
        ~std::size_t{7};
    last_progress_ = executor_.now();
    ack_due_ = true;  // tells the peer of credit that was freed since the handshake
    ++counters_.connections;
    state_.store(LinkState::connected);
  }
  if (old) {
    old->close({ec::duplicate, "replaced by a newer connection to the same node"});
  }
  handler_->on_state(LinkState::connected);
  flush();
  return {};
}

bool Link::detach(const Stream* stream) {
  std::shared_ptr<Stream> old;
  Frame dropped;
  {
    Lock lock{mutex_};
    if (stream_.get() != stream || stream == nullptr) {
      return false;
    }
    old = std::exchange(stream_, nullptr);
    ++stream_epoch_;
    stream_writable_ = false;
    if (!writing_) {
      has_current_ = false;
      dropped = std::move(current_);
    }
    state_.store(LinkState::broken);
  }
  handler_->on_state(LinkState::broken);
  return true;
}

void Link::fail(const error& reason) {
  std::array<SendLane, lane_count> lanes;
  std::deque<Frame> unacked;
  std::shared_ptr<Stream> old;
  Frame dropped;
  {
    Lock lock{mutex_};
    if (state_.load() == LinkState::down) {
      return;
    }
    state_.store(LinkState::down);
    down_reason_ = reason;
    lanes.swap(lanes_);
    unacked.swap(unacked_);
    next_unsent_ = next_sequence_;
    old = std::exchange(stream_, nullptr);
    ++stream_epoch_;
    stream_writable_ = false;
    if (!writing_) {
      has_current_ = false;
      dropped = std::move(current_);
    }
  }
  credit_->disconnect();
  if (ack_timer_ != 0) {
    executor_.cancel(std::exchange(ack_timer_, 0));
  }
  if (old) {
    old->close(reason);
  }
  if (auto handler = std::move(handler_)) {
    handler->on_down(reason);
  }
}

void Link::say_goodbye(const error& reason) {
  std::shared_ptr<Stream> stream;
  {
    const Lock lock{mutex_};
    // Only between frames; otherwise the peer sees a broken connection and finds out by dialling.
    if (!writing_ && !has_current_) {
      stream = stream_;
    }
  }
  if (stream) {
    const auto frame = reject_frame(FrameType::goodbye, reason);
    const ConstBuffer buffer{frame};
    stream->write({&buffer, 1});
  }
  fail(reason);
}

// -- acknowledgements ----------------------------------------------------------------------------------

// Mutex held. Moves what the peer has received to `dropped`.
error Link::drop_acked(std::uint64_t ack, std::vector<Frame>& dropped) {
  if (ack > sent_sequence_) {
    return {ec::malformed, "the peer acknowledges frame " + std::to_string(ack) + " but only " +
                               std::to_string(sent_sequence_) + " were sent"};
  }
  while (!unacked_.empty() && unacked_.front().sequence <= ack) {
    Frame& frame = unacked_.front();
    SendLane& lane = lanes_[static_cast<std::size_t>(frame.lane)];
    lane.queued -= frame.credit();
    lane.system -= frame.system;
    dropped.push_back(std::move(frame));
    unacked_.pop_front();
    last_progress_ = executor_.now();
  }
  return {};
}

Duration Link::stalled_for() const {
  const Lock lock{mutex_};
  return unacked_.empty() ? Duration{0} : executor_.now() - last_progress_;
}

// Mutex held. Which lanes may be written again after would_block.
std::array<bool, lane_count> Link::take_unblocked() {
  std::array<bool, lane_count> result{};
  for (std::size_t i = 0; i < lane_count; ++i) {
    if (lanes_[i].blocked && lanes_[i].queued <= config_.queue_bytes[i] / 2) {
      lanes_[i].blocked = false;
      result[i] = true;
    }
  }
  return result;
}

error Link::process_ack(const FrameHeader& header) {
  std::vector<Frame> dropped;
  std::array<bool, lane_count> unblocked{};
  {
    Lock lock{mutex_};
    bool more_credit = false;
    for (std::size_t i = 0; i < lane_count; ++i) {
      if (header.credit[i] > lanes_[i].credit) {
        lanes_[i].credit = header.credit[i];
        more_credit = true;
      }
    }
    if (auto err = drop_acked(header.ack, dropped)) {
      return err;
    }
    unblocked = take_unblocked();
    if (more_credit && stream_ && stream_writable_ && !writing_ && !flush_posted_ &&
        (!lanes_[0].queue.empty() || !lanes_[1].queue.empty())) {
      post_flush(lock);
    }
  }
  dropped.clear();
  notify_writable(unblocked);
  return {};
}

void Link::notify_writable(std::array<bool, lane_count> lanes) {
  for (std::size_t i = 0; i < lane_count; ++i) {
    if (lanes[i] && handler_) {
      handler_->on_writable(static_cast<Lane>(i));
    }
  }
}

void Link::credit_wanted() {
  credit_->woken();
  send_ack();
}

void Link::after_batch() {
  const auto received = received_sequence_.load(std::memory_order_relaxed);
  if (ack_sent_.load(std::memory_order_acquire) >= received) {
    unacked_received_ = 0;
    return;
  }
  if (unacked_received_ >= config_.ack_bytes) {
    unacked_received_ = 0;
    send_ack();
    return;
  }
  if (ack_timer_ == 0) {
    ack_timer_ = executor_.schedule(config_.ack_delay, [weak = weak_from_this()] {
      if (auto self = weak.lock()) {
        self->ack_timer_ = 0;
        if (self->ack_sent_.load() < self->received_sequence_.load()) {
          self->unacked_received_ = 0;
          self->send_ack();
        }
      }
    });
  }
}

// -- incoming frames -----------------------------------------------------------------------------------

// Whether the frame is new (true) or a duplicate (false); an error when it is neither.
expected<bool> Link::check_incoming(const FrameHeader& header, std::size_t credit) {
  const auto last = received_sequence_.load(std::memory_order_relaxed);
  if (header.sequence <= last) {
    frames_duplicate_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  if (header.sequence != last + 1) {
    return troupe::fail(ec::malformed, "frame " + std::to_string(header.sequence) +
                                           " arrived where " + std::to_string(last + 1) +
                                           " was expected");
  }
  if (receive_[header.lane].received + credit > credit_->advertised(header.lane)) {
    return troupe::fail(ec::limit_exceeded, "the peer sent more than its credit on lane " +
                                                std::to_string(header.lane));
  }
  return true;
}

void Link::note_received(const FrameHeader& header, std::size_t credit) {
  receive_[header.lane].received += credit;
  received_sequence_.store(header.sequence, std::memory_order_release);
  unacked_received_ += credit;
  frames_received_.fetch_add(1, std::memory_order_relaxed);
  bytes_received_.fetch_add(sizeof(FrameHeader) + header.length, std::memory_order_relaxed);
}

error Link::on_frame(const FrameHeader& header, std::span<const std::byte> payload) {
  if (auto err = process_ack(header)) {
    return err;
  }
  switch (header.type) {
    case FrameType::ack:
      return payload.empty() ? error{} : error{ec::malformed, "acknowledgement with a payload"};
    case FrameType::records: {
      const auto fresh = check_incoming(header, payload.size());
      if (!fresh) {
        return fresh.error();
      }
      return *fresh ? deliver_records(header, payload) : error{};
    }
    default:
      return {ec::malformed, "frame type " + std::to_string(static_cast<int>(header.type)) +
                                 " is not allowed after the handshake"};
  }
}

error Link::deliver_records(const FrameHeader& header, std::span<const std::byte> payload) {
  // Bounds of all records first: a frame is taken as a whole or not at all.
  for (auto rest = payload; !rest.empty();) {
    if (rest.size() < sizeof(RecordHeader)) {
      return {ec::malformed, "record header is cut off"};
    }
    const auto record = read_pod<RecordHeader>(rest.data());
    const std::size_t size = sizeof(RecordHeader) + padded(record.size);
    if (size > rest.size()) {
      return {ec::malformed, "record of " + std::to_string(record.size) + " bytes is cut off"};
    }
    rest = rest.subspan(size);
  }
  note_received(header, payload.size());
  const auto lane = static_cast<Lane>(header.lane);
  const auto handler = handler_;  // a record may end the link
  for (auto rest = payload; !rest.empty();) {
    Record record;
    record.header = read_pod<RecordHeader>(rest.data());
    record.body = rest.subspan(sizeof(RecordHeader), record.header.size);
    record.lane = lane;
    const std::size_t size = sizeof(RecordHeader) + padded(record.header.size);
    records_received_.fetch_add(1, std::memory_order_relaxed);
    if (handler && state() != LinkState::down) {
      handler->on_record(record, CreditToken{credit_, header.lane, size});
    }
    rest = rest.subspan(size);
  }
  return {};
}

expected<std::byte*> Link::fragment_target(const FrameHeader& header,
                                           const FragmentHeader& fragment, std::size_t size) {
  if (auto err = process_ack(header)) {
    return troupe::fail(std::move(err));
  }
  const auto fresh = check_incoming(header, size);
  if (!fresh) {
    return troupe::fail(fresh.error());
  }
  if (!*fresh) {
    return static_cast<std::byte*>(nullptr);
  }
  ReceiveLane& lane = receive_[header.lane];
  if (fragment.offset == 0 && lane.have == 0) {
    // A fragment that is read a second time after a broken connection comes here again.
    if (lane.total != fragment.total) {
      try {
        lane.assembly = BlockPool::shared().allocate(fragment.total);
      } catch (const std::bad_alloc&) {
        return troupe::fail(ec::limit_exceeded, "no memory for a message of " +
                                                    std::to_string(fragment.total) + " bytes");
      }
      lane.total = fragment.total;
    }
  } else if (fragment.total != lane.total || fragment.offset != lane.have) {
    return troupe::fail(ec::malformed, fragment_text(fragment));
  }
  return lane.assembly.get() + fragment.offset;
}

error Link::on_fragment(const FrameHeader& header, const FragmentHeader& fragment,
                        std::size_t size) {
  if (header.sequence <= received_sequence_.load(std::memory_order_relaxed)) {
    return {};
  }
  ReceiveLane& lane = receive_[header.lane];
  lane.have = fragment.offset + size;
  note_received(header, size);
  // What is being put together cannot be consumed yet; its credit is lent until it is whole.
  credit_->release(header.lane, size);
  if (lane.have < lane.total) {
    return {};
  }
  const Block block = std::exchange(lane.assembly, {});
  const std::size_t total = std::exchange(lane.total, 0);
  lane.have = 0;
  Record record;
  record.header = read_pod<RecordHeader>(block.get());
  if (sizeof(RecordHeader) + padded(record.header.size) != total) {
    return {ec::malformed, "size of a fragmented record does not match its header"};
  }
  record.body = {block.get() + sizeof(RecordHeader), record.header.size};
  record.owner = block.data;
  record.lane = static_cast<Lane>(header.lane);
  credit_->borrow(header.lane, total);
  records_received_.fetch_add(1, std::memory_order_relaxed);
  CreditToken token{credit_, header.lane, total};
  if (const auto handler = handler_) {
    handler->on_record(record, std::move(token));
  }
  return {};
}

}  // namespace troupe::net
