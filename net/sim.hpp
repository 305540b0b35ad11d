// Why: a whole cluster in one process, under virtual time and from one seed, so that a run with
// partitions, resets and crashes can be repeated exactly. The code under test sees the same
// Executor, Transport and Stream as over TCP.
// Thread-safety: none. One thread builds the world, runs it and asks it; nothing here may be
// touched by another thread, and actor systems that are attached must use the `testing` scheduler.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "net/executor.hpp"
#include "net/node_id.hpp"
#include "net/stream.hpp"

namespace caf {
class actor_system;
}

namespace troupe::net {

/// What the network does to bytes that travel from one node to another (one direction).
struct SimPath {
  /// Time on the wire of every segment.
  Duration delay = std::chrono::microseconds{100};
  /// Uniform in [0, jitter], added per segment; never reorders within a stream.
  Duration jitter{0};
  /// Throttle per stream; 0 = unlimited.
  std::uint64_t bytes_per_second = 0;
  /// New dials are answered with a refusal.
  bool refuse_dials = false;
  /// Probability that a dial reaches the acceptor twice (one of the two streams is dead).
  double duplicate_dials = 0.0;
  /// Probability per segment that one of its bits is flipped.
  double corrupt = 0.0;
};

struct SimConfig {
  /// Of every pair of nodes that has no path of its own.
  SimPath path;
  /// Bytes that one direction of a stream takes before `write` is short (sent, not yet
  /// acknowledged).
  std::size_t buffer = std::size_t{256} << 10U;
  /// Largest segment; sizes are drawn from 1 to this.
  std::size_t max_segment = std::size_t{16} << 10U;
  /// A stream that has unacknowledged bytes dies when a partition holds them this long.
  Duration stream_death = std::chrono::seconds{20};
  /// The side that did not notice the loss of a connection, and does not write, learns it after
  /// this.
  Duration half_open_limit = std::chrono::seconds{60};
  /// After a partition heals, held bytes start to move within this time.
  Duration retransmit = std::chrono::milliseconds{50};
  /// A lost connection is noticed by either side within this time.
  Duration notice = std::chrono::milliseconds{20};
  /// Lines of the event log that are kept (the hash covers all).
  std::size_t log_lines = 100'000;
  /// Events at one virtual instant after which `run_*` gives up: something posts to itself for
  /// ever.
  std::uint64_t livelock = 10'000'000;
};

/// Who learns of a connection that is lost.
enum class SimLoss : std::uint8_t {
  /// Both sides, at different times within `SimConfig::notice`; bytes in flight are gone.
  both,
  /// Both sides, in the next turn.
  reset,
  /// Only the first node; the other when it writes or after `half_open_limit`.
  first_only,
  /// Only the second node.
  second_only,
};

enum class SimCrash : std::uint8_t {
  /// As kill -9: the operating system tells the peers.
  process,
  /// As a power cut: nobody tells anybody.
  host,
};

class SimWorld;
struct SimNode;
struct SimWorldImpl;

/// The loop of one simulated node; both purposes share it.
class SimExecutor final : public Executor {
 public:
  SimExecutor(SimWorldImpl& world, std::uint32_t node) : world_(world), node_(node) {}

  TimePoint now() const noexcept override;
  void post(std::function<void()> fn) override;
  TimerId schedule(Duration delay, std::function<void()> fn) override;
  void cancel(TimerId id) override;
  bool on_thread() const noexcept override;

 private:
  SimWorldImpl& world_;
  std::uint32_t node_;
};

/// The transport of one simulated node; owned by the world.
class SimTransport final : public Transport {
 public:
  SimTransport(SimWorldImpl& world, std::uint32_t node) : world_(world), node_(node) {}

  Executor& executor(StreamPurpose purpose) override;
  void dial(std::string address, StreamPurpose purpose, Duration timeout,
            DialHandler done) override;
  void on_accept(AcceptHandler handler) override;

  const NodeId& id() const noexcept;
  const std::string& address() const noexcept;

 private:
  SimWorldImpl& world_;
  std::uint32_t node_;
};

class SimWorld {
 public:
  explicit SimWorld(std::uint64_t seed, SimConfig config = {});
  ~SimWorld();
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  /// Adds a node that listens on `address`. A new node on the address of a crashed one takes it
  /// over. The reference is valid as long as the world. An id that exists already is a programming
  /// error (std::invalid_argument).
  SimTransport& make_transport(NodeId id, std::string address);

  /// The `index`-th node id of this seed.
  NodeId node_id(std::uint32_t index) const;

  // -- time ---------------------------------------------------------------------------------------

  TimePoint now() const noexcept;
  /// Virtual time since the world began.
  Duration elapsed() const noexcept;
  /// Runs the next event (and the actors it wakes). False when nothing is left to do.
  bool step();
  /// Runs everything that is due within `duration` and sets the clock to its end.
  void run_for(Duration duration);
  /// Runs until `predicate` holds (asked after each event), at most `limit` of virtual time. True
  /// when it held.
  bool run_until(const std::function<bool()>& predicate, Duration limit);
  /// Events run so far.
  std::uint64_t events() const noexcept;
  /// Runs `fn` at `delay` from now outside of any node, e.g. to inject a fault.
  void after(Duration delay, std::function<void()> fn);

  // -- event log ----------------------------------------------------------------------------------

  /// Appends "time node text". Same seed and same program: same lines.
  void log(const NodeId& node, std::string_view text);
  /// The last `SimConfig::log_lines` lines.
  std::vector<std::string> log_lines() const;
  /// Covers all lines and the instant and size of every segment that was delivered.
  std::uint64_t log_hash() const noexcept;
  /// Also told each line as it is written.
  void on_log(std::function<void(std::string_view)> sink);

  // -- faults: paths ------------------------------------------------------------------------------

  /// The path from one node to another as it is now; change it and give it to `set_path`.
  SimPath path(const NodeId& from, const NodeId& to) const;
  void set_path(const NodeId& from, const NodeId& to, SimPath path);
  /// Both directions.
  void set_paths(const NodeId& a, const NodeId& b, SimPath path);

  /// Holds back everything from `from` to `to`, acknowledgements too.
  void partition_one_way(const NodeId& from, const NodeId& to);
  void partition(const NodeId& a, const NodeId& b);
  /// Ends a partition between two nodes, both directions.
  void heal(const NodeId& a, const NodeId& b);
  /// Cuts a node off from all others; independent of pairwise partitions.
  void isolate(const NodeId& node);
  void rejoin(const NodeId& node);

  // -- faults: connections and nodes --------------------------------------------------------------

  /// Loses every connection between two nodes. Returns how many there were. `purpose` restricts it.
  std::size_t drop_connections(const NodeId& first, const NodeId& second, SimLoss loss,
                               std::optional<StreamPurpose> purpose = std::nullopt);
  /// Flips one bit of the next segment that travels from `from` to `to`.
  void corrupt_next(const NodeId& from, const NodeId& to);
  /// The next dial from `from` to `to` reaches the acceptor twice.
  void duplicate_next_dial(const NodeId& from, const NodeId& to);
  /// The node's executor never runs again; what it had queued is dropped without being called.
  void crash(const NodeId& node, SimCrash how = SimCrash::process);
  /// As SIGSTOP: nothing of the node runs, its connections stay; `resume` runs what became due.
  void pause(const NodeId& node);
  void resume(const NodeId& node);
  bool alive(const NodeId& node) const;
  /// Connections that at least one side believes to be open.
  std::size_t connections() const noexcept;

  // -- actors -------------------------------------------------------------------------------------

  /// Runs the actors of `system` (configured with `scheduler.policy = testing`) after each event
  /// and drives its clock with the virtual one. `node`: the node it belongs to; it then pauses and
  /// crashes with it. False when the system has another scheduler. The system must be removed
  /// before it is destroyed, unless the world is not run afterwards.
  bool add_actor_system(caf::actor_system& system, std::optional<NodeId> node = std::nullopt);
  void remove_actor_system(caf::actor_system& system);

 private:
  std::unique_ptr<SimWorldImpl> impl_;
};

}  // namespace troupe::net
