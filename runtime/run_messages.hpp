// Why: what the run manager (on the head), the replica hosts (one per node) and clients say to each other. All of it
// travels on the control lane, except snapshots.
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <caf/actor.hpp>

#include "net/type_registry.hpp"
#include "runtime/run_store.hpp"
#include "runtime/snapshot_store.hpp"

namespace troupe {

/// Names under which the actors are published (net::Mesh::publish).
inline constexpr const char* run_manager_name = "troupe.runs";
inline constexpr const char* replica_host_name = "troupe.host";

/// A replica of a run, by place in the topology: the role's number in Topology::roles and its index.
struct ReplicaKey {
  std::uint32_t role = 0;
  std::uint32_t index = 0;
  friend auto operator<=>(const ReplicaKey&, const ReplicaKey&) = default;
};
template <class Inspector>
auto inspect(Inspector& f, ReplicaKey& x) {
  return f(x.role, x.index);
}

struct ReplicaId {
  std::string run_id;
  ReplicaKey key;
  std::uint64_t incarnation = 0;
  friend auto operator<=>(const ReplicaId&, const ReplicaId&) = default;
};
template <class Inspector>
auto inspect(Inspector& f, ReplicaId& x) {
  return f(x.run_id, x.key, x.incarnation);
}

// -- manager -> host ---------------------------------------------------------------------------------------

/// "I manage runs now; what have you got?" Sent when the manager meets a member, and again after it was out of reach.
/// From then on the host reports to the sender. Answer: HostInventory.
struct HostSync {
  std::uint64_t node_incarnation =
      0;  ///< the membership's, of the host's node: a fenced one answers with another
  std::uint64_t session = 0;  ///< of this meeting; reports carry it
};
template <class Inspector>
auto inspect(Inspector& f, HostSync& x) {
  return f(x.node_incarnation, x.session);
}

struct HostReplica {
  ReplicaId id;
  bool up = false;  ///< false: still starting
};
template <class Inspector>
auto inspect(Inspector& f, HostReplica& x) {
  return f(x.id, x.up);
}

struct HostInventory {
  std::uint64_t node_incarnation = 0;
  std::vector<std::string> role_types;
  std::vector<HostReplica> replicas;    ///< that live, of all runs
  std::vector<SnapshotMeta> snapshots;  ///< newest of each path in the store of this node
};
template <class Inspector>
auto inspect(Inspector& f, HostInventory& x) {
  return f(x.node_incarnation, x.role_types, x.replicas, x.snapshots);
}

/// Comes before anything else of the run. Again with the same id: no matter.
struct RunOpen {
  std::string run_id;
  std::string topology;  ///< TOML
};
template <class Inspector>
auto inspect(Inspector& f, RunOpen& x) {
  return f(x.run_id, x.topology);
}

struct ReplicaStart {
  ReplicaKey key;
  std::uint64_t incarnation = 0;
  SnapshotVersion snapshot;     ///< to restore; none: starts empty
  std::vector<NodeId> holders;  ///< nodes that have it
};
template <class Inspector>
auto inspect(Inspector& f, ReplicaStart& x) {
  return f(x.key, x.incarnation, x.snapshot, x.holders);
}

/// The host reports `started` or `ended` for each. One that it has already under this incarnation stays as it is.
struct StartReplicas {
  std::string run_id;
  std::uint64_t node_incarnation = 0;  ///< not the host's: ignored
  std::vector<ReplicaStart> replicas;
};
template <class Inspector>
auto inspect(Inspector& f, StartReplicas& x) {
  return f(x.run_id, x.node_incarnation, x.replicas);
}

enum class StopMode : std::uint8_t {
  stop,  ///< on_stop, then the deadline of its role, then kill
  move,  ///< as stop, with a snapshot if it has state; what still arrives is passed on to the new place
  kill,
};

struct ReplicaStop {
  ReplicaKey key;
  std::uint64_t incarnation = 0;
};
template <class Inspector>
auto inspect(Inspector& f, ReplicaStop& x) {
  return f(x.key, x.incarnation);
}

/// The host reports `ended` for each; at once for those it does not have.
struct StopReplicas {
  std::string run_id;
  StopMode mode = StopMode::stop;
  std::string reason;
  std::vector<ReplicaStop> replicas;
};
template <class Inspector>
auto inspect(Inspector& f, StopReplicas& x) {
  return f(x.run_id, x.mode, x.reason, x.replicas);
}

/// Where one replica is.
struct RunEntry {
  ReplicaKey key;
  std::uint64_t incarnation = 0;
  ReplicaState state =
      ReplicaState::idle;  ///< `up`: messages may go to `node`; idle and `ended`: gone
  bool ended = false;
  NodeId node;
};
template <class Inspector>
auto inspect(Inspector& f, RunEntry& x) {
  return f(x.key, x.incarnation, x.state, x.ended, x.node);
}

/// Changes of a run's table, to every host that has replicas of it or watches it. In order by `epoch`; `base` 0: all
/// entries, forget what was. A host that misses some (base is not its epoch) asks with RunWatch.
struct RunTable {
  std::string run_id;
  std::uint64_t base = 0;
  std::uint64_t epoch = 0;
  std::vector<std::uint32_t> counts;  ///< replicas per role
  std::vector<RunEntry> entries;
};
template <class Inspector>
auto inspect(Inspector& f, RunTable& x) {
  return f(x.run_id, x.base, x.epoch, x.counts, x.entries);
}

/// The run is over: end what is left of it, forget it; `forget_snapshots` also its snapshots.
struct RunClose {
  std::string run_id;
  std::string reason;
  bool forget_snapshots = false;
};
template <class Inspector>
auto inspect(Inspector& f, RunClose& x) {
  return f(x.run_id, x.reason, x.forget_snapshots);
}

/// Answer: HostStats. `run_id` empty: of all runs.
struct HostStatsRequest {
  std::string run_id;
};
template <class Inspector>
auto inspect(Inspector& f, HostStatsRequest& x) {
  return f(x.run_id);
}

struct ReplicaStats {
  ReplicaId id;
  std::uint64_t mailbox = 0;  ///< messages that wait
  std::uint64_t handled = 0;  ///< messages handled
  std::uint64_t refused = 0;  ///< messages refused because the mailbox was full
  std::int64_t busy_ms = 0;   ///< for how long the present handler has been running; 0: idle
  std::vector<std::pair<std::string, double>> metrics;
};
template <class Inspector>
auto inspect(Inspector& f, ReplicaStats& x) {
  return f(x.id, x.mailbox, x.handled, x.refused, x.busy_ms, x.metrics);
}

struct HostStats {
  std::vector<ReplicaStats> replicas;
};
template <class Inspector>
auto inspect(Inspector& f, HostStats& x) {
  return f(x.replicas);
}

// -- host -> manager ---------------------------------------------------------------------------------------

enum class ReplicaReport : std::uint8_t {
  started,   ///< constructed, restored, `on_start` done
  finished,  ///< ended normally by itself
  failed,    ///< ended by itself otherwise, or its start failed; `text` says why
  stopped,   ///< after StopReplicas
  killed,    ///< … its deadline was over (or the mode was kill)
  saved,     ///< `snapshot` is stored on `holders`
  end_run,   ///< the role asks to end the run: done when `text` is empty, else failed
  note,      ///< `text` for history only ("mailbox full: 17 messages refused", …)
};

struct ReplicaEvent {
  ReplicaId id;
  ReplicaReport what = ReplicaReport::note;
  std::string text;
  SnapshotVersion snapshot;
  std::vector<NodeId> holders;
};
template <class Inspector>
auto inspect(Inspector& f, ReplicaEvent& x) {
  return f(x.id, x.what, x.text, x.snapshot, x.holders);
}

/// Events in order; sent again until answered with HostReportAck. `seq` of the first event; the manager skips what it
/// has seen of this session.
struct HostReport {
  NodeId node;
  std::uint64_t node_incarnation = 0;
  std::uint64_t session = 0;
  std::uint64_t seq = 0;
  std::vector<ReplicaEvent> events;
};
template <class Inspector>
auto inspect(Inspector& f, HostReport& x) {
  return f(x.node, x.node_incarnation, x.session, x.seq, x.events);
}

struct HostReportAck {
  std::uint64_t session = 0;
  std::uint64_t next = 0;  ///< seq of the next event that it wants
};
template <class Inspector>
auto inspect(Inspector& f, HostReportAck& x) {
  return f(x.session, x.next);
}

/// "Tell me about this run" (id or name), from a host with no replica of it, or one that missed an update.
/// Answer: RunOpen with the full topology (or an error: ec::not_found); RunTable with base 0 follows, and updates.
struct RunWatch {
  std::string run;
};
template <class Inspector>
auto inspect(Inspector& f, RunWatch& x) {
  return f(x.run);
}

// -- host -> host --------------------------------------------------------------------------------------------

/// Answer: FoundReplicas, handles in the order asked; null where this node does not have it (any more).
struct FindReplicas {
  std::vector<ReplicaId> replicas;
};
template <class Inspector>
auto inspect(Inspector& f, FindReplicas& x) {
  return f(x.replicas);
}

struct FoundReplicas {
  std::vector<caf::actor> actors;
};
template <class Inspector>
auto inspect(Inspector& f, FoundReplicas& x) {
  return f(x.actors);
}

/// "Keep this copy." Answer: SnapshotKept.
struct KeepSnapshot {
  Snapshot snapshot;
};
template <class Inspector>
auto inspect(Inspector& f, KeepSnapshot& x) {
  return f(x.snapshot);
}

struct SnapshotKept {
  ec code = ec::none;
  std::string text;
};
template <class Inspector>
auto inspect(Inspector& f, SnapshotKept& x) {
  return f(x.code, x.text);
}

/// Answer: Snapshot, or an error.
struct FetchSnapshot {
  std::string run_id;
  std::string path;
  SnapshotVersion version;  ///< at most this
};
template <class Inspector>
auto inspect(Inspector& f, FetchSnapshot& x) {
  return f(x.run_id, x.path, x.version);
}

// -- replica, from any reference -----------------------------------------------------------------------------

/// Answered by a replica when everything sent to it before on the same way has been handled or passed on.
struct FlushMessages {
  std::uint8_t hops = 0;
};
template <class Inspector>
auto inspect(Inspector& f, FlushMessages& x) {
  return f(x.hops);
}

// -- clients -> manager (any agent's node relays over HTTP) --------------------------------------------------

/// Answer to all of these: RunReply, whose `json` is what the HTTP interface gives.
struct RunReply {
  ec code = ec::none;
  std::string text;
  std::string json;
};
template <class Inspector>
auto inspect(Inspector& f, RunReply& x) {
  return f(x.code, x.text, x.json);
}

struct RunSubmit {
  std::string topology;  ///< TOML, overrides applied
  std::string name;      ///< empty: the topology's
};
template <class Inspector>
auto inspect(Inspector& f, RunSubmit& x) {
  return f(x.topology, x.name);
}

struct RunStopOrder {
  std::string run;  ///< name or id
  std::string reason;
};
template <class Inspector>
auto inspect(Inspector& f, RunStopOrder& x) {
  return f(x.run, x.reason);
}

struct RunList {};
template <class Inspector>
auto inspect(Inspector& f, RunList&) {
  return f();
}

/// The live supervision tree.
struct RunTree {
  std::string run;
  bool stats = true;  ///< ask the hosts for mailboxes and metrics (at most 1 s)
};
template <class Inspector>
auto inspect(Inspector& f, RunTree& x) {
  return f(x.run, x.stats);
}

struct RunEventsRequest {
  std::string run;  ///< "" all
  std::uint64_t after_seq = 0;
  std::uint32_t limit = 1000;
};
template <class Inspector>
auto inspect(Inspector& f, RunEventsRequest& x) {
  return f(x.run, x.after_seq, x.limit);
}

/// Registers all of these.
expected<void> add_run_types(net::TypeRegistry& registry);

}  // namespace troupe
