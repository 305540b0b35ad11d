// Why: a link is what two nodes have in common: records go in on one side and come out on the other,
// in order and once, whatever happens to the connections below. It owns the send queues by lane, the
// coalescing of records into frames, fragments of large ones, credits, acknowledgements and the replay
// of what a broken connection swallowed. It knows neither sockets nor actors: bytes leave through a
// `Stream`, records arrive at a `LinkHandler`, time comes from an `Executor`.
// Thread-safety: `send`, `state`, `counters`, `queued_bytes` from any thread; all else on the
// executor's thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "net/bytes.hpp"
#include "net/credit.hpp"
#include "net/frame_reader.hpp"
#include "net/handshake.hpp"
#include "net/stream.hpp"
#include "net/wire.hpp"

namespace troupe::net {

/// Limits and times of a link. Sizes in bytes.
struct LinkConfig {
  /// Largest data in one fragment frame: what a control record may have to wait for.
  std::size_t max_fragment = std::size_t{256} << 10U;
  /// Small records are collected into frames of up to this size.
  std::size_t coalesce = std::size_t{64} << 10U;
  /// Records from this size on travel as fragments and are not copied.
  std::size_t large_record = std::size_t{32} << 10U;
  /// Per lane: bound on what is queued or not yet acknowledged. Once it is reached `send` answers
  /// `would_block`; the record that reaches it may overshoot by its own size.
  std::array<std::size_t, lane_count> queue_bytes{std::size_t{8} << 20U, std::size_t{64} << 20U};
  /// Per lane: bytes the peer may have sent that were not consumed here.
  std::array<std::size_t, lane_count> window_bytes{std::size_t{8} << 20U, std::size_t{64} << 20U};
  /// Largest record accepted or sent.
  std::size_t max_message = std::size_t{1} << 30U;
  /// How long a broken connection may be remade before the link is down.
  Duration grace = std::chrono::seconds{10};
  /// An acknowledgement waits this long for a frame to ride on …
  Duration ack_delay = std::chrono::milliseconds{5};
  /// … unless this much has been received.
  std::size_t ack_bytes = std::size_t{1} << 20U;
  /// A record is written by the sending thread itself when nothing was written for this long;
  /// otherwise the I/O thread collects what comes. While collecting pays (the last frame held several
  /// records) it takes five times as long.
  Duration idle_flush = std::chrono::microseconds{20};
};

enum class LinkState : std::uint8_t {
  connecting,  ///< never connected yet
  connected,
  broken,  ///< the connection is lost and may come back within the grace time
  down,    ///< final
};

enum class SendResult : std::uint8_t {
  ok,
  would_block,  ///< the lane is at its bound; `on_writable` follows
  too_large,    ///< exceeds the peer's or the own limit of a message
  down,
};

/// How a record treats the bound of its lane.
enum class SendForce : std::uint8_t {
  none,
  response,  ///< may use four times the bound: responses are limited by the requests that came in
  system,    ///< ignores it: small records of the mesh, limited by what they speak of
};

/// Totals since the link began.
struct LinkCounters {
  std::uint64_t records_sent = 0;
  std::uint64_t records_received = 0;
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  std::uint64_t frames_replayed = 0;   ///< sent again after a reconnect
  std::uint64_t frames_duplicate = 0;  ///< received again and ignored
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t would_block = 0;
  std::uint64_t connections = 0;
  std::array<std::uint64_t, lane_count> queued_bytes{};
};

/// A record as it arrives.
struct Record {
  RecordHeader header;
  std::span<const std::byte> body;    ///< 8-byte aligned within its frame or block
  std::shared_ptr<const void> owner;  ///< keeps `body` alive; null: valid during the call only
  Lane lane = Lane::user;
};

/// Where records and changes of a link go. Called on the executor's thread.
class LinkHandler {
 public:
  virtual ~LinkHandler() = default;

  /// In order per lane. The token is held until the record has been consumed.
  virtual void on_record(const Record& record, CreditToken token) = 0;

  /// After `would_block`: the lane has room again (at most half of its bound is in use).
  virtual void on_writable(Lane lane) = 0;

  virtual void on_state(LinkState state) = 0;

  /// The last call.
  virtual void on_down(const error& reason) = 0;
};

class Link : public std::enable_shared_from_this<Link> {
 public:
  Link(Executor& executor, const LinkConfig& config, const NodeId& self, const NodeId& peer,
       std::uint64_t session);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  const NodeId& peer() const noexcept { return peer_; }

  /// Set once, before the first connection.
  void set_handler(std::shared_ptr<LinkHandler> handler) { handler_ = std::move(handler); }

  // -- sending (any thread) --------------------------------------------------------------------------

  /// Queues one record. `pieces` are its body; with an `owner` large ones are referenced until they
  /// are acknowledged, without one they are copied.
  SendResult send(Lane lane, RecordHeader header, std::span<const ConstBuffer> pieces,
                  std::shared_ptr<const void> owner = nullptr, SendForce force = SendForce::none);

  /// From this size of body on an owner saves a copy.
  std::size_t large_record() const noexcept { return config_.large_record; }

  LinkState state() const noexcept { return state_.load(std::memory_order_acquire); }
  LinkCounters counters() const;
  std::size_t queued_bytes(Lane lane) const;

  /// True when system records wait for the peer's acknowledgement beyond any honest measure: it makes
  /// this node owe answers and does not take them. The link should be ended then.
  bool overwhelmed() const;

  /// True while `send` on `lane` would be accepted without force.
  bool writable(Lane lane) const;

  /// As `writable`; when it is false, `LinkHandler::on_writable` follows (or `on_down`).
  bool request_writable(Lane lane);

  /// Why the link is down.
  error down_reason() const;

  // -- connections (executor's thread) ---------------------------------------------------------------

  /// Fills the session fields of a Hello.
  void describe(Hello& hello) const;
  SessionState session() const;

  /// Uses `stream` from now on: what the peer has not received (by its Hello) is sent again. Errors:
  /// ec::malformed when the peer claims what was never sent.
  error attach(std::shared_ptr<Stream> stream, const Hello& peer, std::uint64_t connection,
               const NodeId& initiator);

  /// The connection is gone. False when `stream` was not the current one.
  bool detach(const Stream* stream);

  /// How long frames have been waiting for an acknowledgement without any progress; 0 if none does.
  Duration stalled_for() const;

  /// Ends the link for good and tells the handler.
  void fail(const error& reason);

  /// Sends a goodbye frame as far as the stream takes it, then ends the link.
  void say_goodbye(const error& reason);

  void on_stream_writable(const Stream* stream);

  // Frames from the current connection; errors end that connection.
  error on_frame(const FrameHeader& header, std::span<const std::byte> payload);
  expected<std::byte*> fragment_target(const FrameHeader& header, const FragmentHeader& fragment,
                                       std::size_t size);
  error on_fragment(const FrameHeader& header, const FragmentHeader& fragment, std::size_t size);

  /// To be called after a read has been worked off: acknowledges where due.
  void after_batch();

  FrameLimits frame_limits() const;

 private:
  class Credit;

  // A record too large for a frame: referenced, not copied.
  struct LargeRecord {
    RecordHeader header;
    std::vector<ConstBuffer> pieces;  // header (in this object), body, padding
    std::shared_ptr<const void> owner;
    std::size_t total = 0;
  };

  // A frame that was or will be sent; kept until acknowledged.
  struct Frame {
    std::uint64_t sequence = 0;
    FrameType type = FrameType::records;
    Lane lane = Lane::user;
    std::shared_ptr<std::byte> block;  // keeps `head` alive
    std::byte* head = nullptr;         // frame header and inline payload
    std::size_t head_size = 0;
    std::shared_ptr<LargeRecord> large;
    std::size_t offset = 0;     // of the data within the large record
    std::size_t data_size = 0;  // bytes of the large record in this frame
    std::size_t system = 0;     // bytes of system records in this frame
    bool checked = false;       // the header holds the payload's checksum

    std::size_t size() const noexcept { return head_size + data_size; }
    std::size_t credit() const noexcept {
      return type == FrameType::fragment ? data_size : head_size - sizeof(FrameHeader);
    }
  };

  struct QueueItem {
    std::size_t records = 1;
    Frame frame;                         // of small records, or …
    std::shared_ptr<LargeRecord> large;  // … a large one, of which
    std::size_t offset = 0;              // this much has been cut off
  };

  struct SendLane {
    std::deque<QueueItem> queue;
    Block arena;
    std::size_t arena_used = 0;
    bool open = false;         // the last item is a frame that still takes records
    std::size_t queued = 0;    // bytes not yet acknowledged, sent or not
    std::size_t system = 0;    // of these in small system records
    std::uint64_t sent = 0;    // credit used
    std::uint64_t credit = 0;  // credit granted by the peer
    bool blocked = false;      // somebody was told would_block
  };

  struct ReceiveLane {
    std::uint64_t received = 0;  // credit used by the peer
    Block assembly;
    std::size_t total = 0;
    std::size_t have = 0;
  };

  using Lock = std::unique_lock<std::mutex>;

  void append_small(SendLane& lane, const RecordHeader& header,
                    std::span<const ConstBuffer> pieces);
  void append_large(SendLane& lane, const RecordHeader& header, std::span<const ConstBuffer> pieces,
                    std::shared_ptr<const void> owner);
  std::byte* reserve(SendLane& lane, std::size_t size);
  void write_loop(Lock& lock, std::size_t budget);
  bool quiet() const;
  bool pick_frame();
  bool pick_from_lane(SendLane& lane, std::size_t index);
  bool cut_fragment(SendLane& lane, std::size_t index);
  void commit_frame(Frame frame);
  bool has_output() const;
  void prepare(Frame& frame, bool encrypted);
  std::size_t collect(const Frame& frame, std::size_t offset, ConstBuffer* buffers,
                      std::size_t limit, std::size_t& bytes) const;
  void post_flush(Lock& lock);
  void flush();
  void send_ack();
  error process_ack(const FrameHeader& header);
  error drop_acked(std::uint64_t ack, std::vector<Frame>& dropped);
  std::array<bool, lane_count> take_unblocked();
  expected<bool> check_incoming(const FrameHeader& header, std::size_t credit);
  void note_received(const FrameHeader& header, std::size_t credit);
  error deliver_records(const FrameHeader& header, std::span<const std::byte> payload);
  void notify_writable(std::array<bool, lane_count> lanes);
  void credit_wanted();

  Executor& executor_;
  const LinkConfig config_;
  const NodeId self_;
  const NodeId peer_;
  const std::uint64_t session_;
  std::shared_ptr<LinkHandler> handler_;
  std::shared_ptr<Credit> credit_;

  std::atomic<LinkState> state_{LinkState::connecting};

  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::array<SendLane, lane_count> lanes_;
  std::deque<Frame> unacked_;
  std::uint64_t next_sequence_ = 1;
  std::uint64_t next_unsent_ = 1;    // first that the current stream has not been given in full
  std::uint64_t sent_sequence_ = 0;  // highest ever handed to a stream, if only in part
  Block header_arena_;               // headers of fragments
  std::size_t header_arena_used_ = 0;
  std::shared_ptr<Stream> stream_;
  std::uint64_t stream_epoch_ = 0;    // changes with stream_
  std::uint64_t writable_epoch_ = 0;  // counts on_stream_writable
  bool stream_writable_ = false;
  bool writing_ = false;
  bool flush_posted_ = false;
  bool ack_due_ = false;
  Frame current_;  // partly written
  std::size_t current_offset_ = 0;
  bool has_current_ = false;
  TimePoint last_write_{};
  std::size_t last_records_ = 1;  // in the frame of small records that was picked last
  TimePoint last_progress_{};  // when the oldest frame began to wait, or the last acknowledgement
  std::uint64_t peer_session_ = 0;
  std::uint64_t connection_ = 0;
  NodeId initiator_;
  std::uint64_t peer_max_message_ = 0;
  std::size_t peer_max_fragment_ = 0;
  error down_reason_;
  LinkCounters counters_;
  // Executor's thread only:
  std::array<ReceiveLane, lane_count> receive_;
  std::size_t unacked_received_ = 0;
  TimerId ack_timer_ = 0;
  // Written by the executor's thread, read by writers:
  std::atomic<std::uint64_t> received_sequence_{0};
  std::atomic<std::uint64_t> ack_sent_{0};
  std::atomic<std::uint64_t> records_received_{0};
  std::atomic<std::uint64_t> frames_received_{0};
  std::atomic<std::uint64_t> frames_duplicate_{0};
  std::atomic<std::uint64_t> bytes_received_{0};
};

}  // namespace troupe::net
