// Why: the parts of the simulated world that its source files share; not installed, not for users.
// Thread-safety: none, see net/sim.hpp.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <unordered_map>

#include "net/philox.hpp"
#include "net/sim.hpp"

namespace caf::scheduler {
class test_coordinator;
}

namespace troupe::net {

inline constexpr std::uint32_t no_node = 0xFFFFFFFFU;

/// Roles of the world's random streams, so that one never shifts another.
enum class SimRole : std::uint32_t { node_id = 1, segments, dials, losses };

/// Events ordered by (time, sequence number), with exact cancellation.
class SimQueue {
 public:
  struct Entry {
    TimePoint at;
    std::uint64_t sequence = 0;
    std::uint32_t slot = 0;
  };

  TimerId push(TimePoint at, std::uint32_t node, std::function<void()> fn);
  void cancel(TimerId id);
  /// Time of the next live event.
  std::optional<TimePoint> next();
  /// Takes the next live event; its slot stays until `release` or `again`.
  Entry pop();
  std::uint32_t node_of(const Entry& entry) const { return slots_[entry.slot].node; }
  /// Frees the slot and gives out its function (empty when it was cancelled meanwhile).
  std::function<void()> release(const Entry& entry);
  /// Puts a popped event back, due at `at`; its id stays valid.
  void again(const Entry& entry, TimePoint at);
  /// Cancels all events of a node and gives out their functions, to be destroyed by the caller.
  std::vector<std::function<void()>> drop_node(std::uint32_t node);
  std::vector<std::function<void()>> drop_all();

 private:
  struct Slot {
    std::function<void()> fn;
    std::uint32_t generation = 0;
    std::uint32_t node = no_node;
    bool live = false;
  };

  void push_entry(Entry entry);
  void free_slot(std::uint32_t slot);
  void compact();

  std::vector<Entry> heap_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::uint64_t sequence_ = 0;
  std::size_t dead_ = 0;
};

/// A few bytes on their way; `fin` ends the stream behind them.
struct SimSegment {
  TimePoint arrives;
  std::vector<std::byte> bytes;
  bool fin = false;
};

/// One direction of a connection, named after the side that sends.
struct SimDirection {
  explicit SimDirection(PhiloxStream stream) : random(stream) {}

  std::deque<SimSegment> queue;
  /// Bytes taken by `write` and not yet acknowledged.
  std::size_t unacknowledged = 0;
  /// Delivered, acknowledgement on its way.
  std::size_t acknowledging = 0;
  TimePoint line_free{};
  TimePoint last_arrival{};
  /// Since when a partition has held bytes or acknowledgements.
  std::optional<TimePoint> held_since;
  bool deliver_scheduled = false;
  bool deliver_held = false;
  bool ack_scheduled = false;
  bool ack_held = false;
  /// A reset towards the sender got stuck in a partition.
  bool reset_held = false;
  bool want_writable = false;
  PhiloxStream random;
};

/// One side's view of a connection.
struct SimEnd {
  std::uint32_t node = no_node;
  std::shared_ptr<StreamSink> sink;
  error reason;
  bool started = false;
  /// No longer sends or receives; `on_closed` has been or will be called.
  bool ended = false;
  bool notify_scheduled = false;
};

/// Handles may outlive the world; then they do nothing.
struct SimWorldRef {
  SimWorldImpl* world = nullptr;
};

struct SimConnection {
  SimConnection(std::shared_ptr<SimWorldRef> ref, std::uint32_t id_in, std::uint64_t seed);

  SimWorldImpl* world() const noexcept { return world_ref->world; }

  std::shared_ptr<SimWorldRef> world_ref;
  std::uint32_t id;
  StreamPurpose purpose = StreamPurpose::link;
  /// Bytes in flight vanish; each side has a time at which it notices.
  bool lost = false;
  /// 0: the side that dialled.
  SimEnd ends[2];
  SimDirection directions[2];
};

using SimConnectionPtr = std::shared_ptr<SimConnection>;

/// The handle of one side.
class SimStream final : public Stream {
 public:
  SimStream(SimConnectionPtr connection, int side)
      : connection_(std::move(connection)), side_(side) {}
  ~SimStream() override;

  void start(std::shared_ptr<StreamSink> sink) override;
  std::size_t write(std::span<const ConstBuffer> buffers) override;
  void close(error reason) override;
  std::string peer_address() const override;

 private:
  SimConnectionPtr connection_;
  int side_;
};

struct SimNode {
  SimNode(SimWorldImpl& world, std::uint32_t index, NodeId id_in, std::string address_in)
      : id(id_in),
        address(std::move(address_in)),
        executor(world, index),
        transport(world, index) {}

  NodeId id;
  std::string address;
  SimExecutor executor;
  SimTransport transport;
  Transport::AcceptHandler accept;
  bool alive = true;
  bool paused = false;
  bool isolated = false;
  bool powered = true;
  std::vector<SimQueue::Entry> deferred;
  /// By connection id: the order must not depend on addresses in memory.
  std::map<std::uint32_t, SimConnectionPtr> connections;
};

/// What is not the default between two nodes, one direction.
struct SimPathState {
  SimPath path;
  bool own_path = false;
  bool blocked = false;
  bool corrupt_next = false;
  bool duplicate_next = false;
};

/// An attached actor system.
struct SimActorSystem {
  std::shared_ptr<SimWorldRef> world_ref;
  caf::actor_system* system = nullptr;
  caf::scheduler::test_coordinator* coordinator = nullptr;
  std::uint32_t node = no_node;
  std::uint32_t index = 0;
  bool dirty = false;
  std::optional<TimePoint> due;
};

/// A dial on its way.
struct SimDial {
  std::uint32_t from = no_node;
  std::string address;
  StreamPurpose purpose = StreamPurpose::link;
  Transport::DialHandler done;
  SimConnectionPtr connection;
  TimerId timer = 0;
  Duration retry{0};
  bool finished = false;
};

using SimDialPtr = std::shared_ptr<SimDial>;

struct SimWorldImpl {
  SimWorldImpl(std::uint64_t seed_in, SimConfig config_in);
  ~SimWorldImpl();

  // sim.cpp
  std::uint32_t index_of(const NodeId& id) const;
  SimPathState& path_state(std::uint32_t from, std::uint32_t to);
  const SimPath& path(std::uint32_t from, std::uint32_t to) const;
  bool blocked(std::uint32_t from, std::uint32_t to) const;
  TimerId at(TimePoint when, std::uint32_t node, std::function<void()> fn);
  std::optional<TimePoint> next_time();
  bool step();
  bool run(TimePoint deadline, const std::function<bool()>* predicate);
  void log(std::string_view who, std::string_view text);
  void log(std::uint32_t node, std::string_view text);
  void mix(std::uint64_t a, std::uint64_t b, std::uint64_t c);
  void path_changed(std::uint32_t node, std::uint32_t other);

  // sim_stream.cpp
  SimConnectionPtr connect(std::uint32_t dialer, std::uint32_t acceptor, StreamPurpose purpose);
  Duration wire_time(SimDirection& direction, std::uint32_t from, std::uint32_t to);
  void schedule_delivery(const SimConnectionPtr& connection, int from);
  void deliver(const SimConnectionPtr& connection, int from);
  void deliver_segment(const SimConnectionPtr& connection, int from, SimSegment segment);
  void acknowledge(const SimConnectionPtr& connection, int from, std::size_t count);
  void acknowledged(const SimConnectionPtr& connection, int from);
  void hold(const SimConnectionPtr& connection, int from);
  void unhold(const SimConnectionPtr& connection);
  void send_reset(const SimConnectionPtr& connection, int to);
  void finish(const SimConnectionPtr& connection, int side, error reason);
  void vanish(const SimConnectionPtr& connection, int side);
  void schedule_notify(const SimConnectionPtr& connection, int side);
  void expire_half_open(const SimConnectionPtr& connection, int side);
  void forget_if_done(const SimConnectionPtr& connection);
  void lose(const SimConnectionPtr& connection, int first, SimLoss loss);
  void crash(std::uint32_t node, SimCrash how);
  void crash_side(const SimConnectionPtr& connection, int side, SimCrash how, bool abrupt);

  // sim_transport.cpp
  void dial_arrives(const SimDialPtr& dial);
  void dial_accepted(const SimDialPtr& dial, std::uint32_t to);
  void dial_refused(const SimDialPtr& dial, std::uint32_t to, std::string text);
  void dial_answered(const SimDialPtr& dial);
  void dial_done(const SimDialPtr& dial, expected<OpenStream> result);
  void offer(std::uint32_t to, const SimConnectionPtr& connection);
  void offer_duplicate(const SimDialPtr& dial, std::uint32_t to, Duration delay);

  // sim_caf.cpp
  void sync_clock(SimActorSystem& system);
  void before_event(std::uint32_t node);
  void after_event(std::uint32_t node);
  void refresh_all();
  void mark_dirty(SimActorSystem& system);
  void drain_dirty();
  void drain(SimActorSystem& system);
  void update_due(SimActorSystem& system);
  void sync_clocks();
  bool runnable(const SimActorSystem& system) const;
  void abandon(SimActorSystem& system);
  void abandon_systems(std::uint32_t node);
  void forget_system(caf::actor_system& system);
  void arm(const std::shared_ptr<SimActorSystem>& system);

  std::shared_ptr<SimWorldRef> ref = std::make_shared<SimWorldRef>();
  bool closing = false;
  std::uint64_t seed;
  SimConfig config;
  TimePoint start;
  TimePoint now;
  SimQueue queue;
  std::uint64_t events = 0;
  std::uint64_t same_instant = 0;
  std::uint32_t current = no_node;
  bool in_actors = false;

  std::vector<std::unique_ptr<SimNode>> nodes;
  std::unordered_map<NodeId, std::uint32_t> by_id;
  std::unordered_map<std::string, std::uint32_t> by_address;
  std::unordered_map<std::uint64_t, SimPathState> paths;
  std::map<std::uint32_t, SimConnectionPtr> connections;
  std::uint32_t next_connection = 0;
  std::uint32_t next_loss = 0;
  PhiloxStream dial_random;

  std::deque<std::string> lines;
  std::uint64_t hash = 0;
  std::function<void(std::string_view)> log_sink;

  std::vector<std::shared_ptr<SimActorSystem>> systems;
  std::unordered_map<std::uint32_t, std::vector<std::shared_ptr<SimActorSystem>>> by_node;
  std::vector<std::uint32_t> dirty;
  std::set<std::pair<TimePoint, std::uint32_t>> due;
};

}  // namespace troupe::net
