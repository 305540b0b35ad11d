// Why: runs outlive the head's process: a restarted head must know which runs there are, where each replica was placed
// under which incarnation, and never give an incarnation twice. A store makes batches durable before nodes are told.
// Thread-safety: one thread at a time (the run manager's).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "net/error.hpp"
#include "net/node_id.hpp"
#include "runtime/snapshot_store.hpp"

namespace troupe {

enum class RunState : std::uint8_t {
  starting,
  running,
  stopping,  ///< ordered, or because it failed or is done: see `reason`
  stopped,   ///< by order
  done,      ///< everything it had to do is done
  failed,
};
std::string_view to_string(RunState state) noexcept;
constexpr bool is_over(RunState state) noexcept { return state >= RunState::stopped; }

struct RunRecord {
  std::string id;        ///< unique, 16 hexadecimal digits
  std::string name;      ///< unique among runs that are not over
  std::string topology;  ///< TOML, overrides applied
  RunState state = RunState::starting;
  std::string reason;
  std::int64_t created_ms = 0;
  std::int64_t ended_ms = 0;  ///< 0: not over
  std::uint32_t attempt = 0;  ///< restarts of the whole run
};

/// Where a replica is in its life, as the head knows it.
enum class ReplicaState : std::uint8_t {
  idle,  ///< not placed: not started yet, waits for back-off or resources, or has ended for good
  starting,  ///< its node has been told
  up,
  moving,  ///< ends on its node to start on another
  stopping,
};
std::string_view to_string(ReplicaState state) noexcept;

struct ReplicaRecord {
  std::string run_id;
  std::string role;
  std::uint32_t index = 0;
  /// Of the last start, 0 before the first. Grows by one per start and is never used again.
  std::uint64_t incarnation = 0;
  ReplicaState state = ReplicaState::idle;
  NodeId node;                         ///< of the last start
  std::uint64_t node_incarnation = 0;  ///< membership's, of that node
  std::uint64_t restarts = 0;
  bool ended = false;  ///< for good, normally or given up
  std::string last_failure;
  SnapshotVersion snapshot;     ///< newest known
  std::vector<NodeId> holders;  ///< of it
};

struct RunEvent {
  std::uint64_t seq = 0;  ///< given by the store, grows by one
  std::int64_t time_ms = 0;
  std::string run;  ///< name
  std::string run_id;
  std::string path;  ///< "role/index", a role, a group, or "" for the run
  std::uint64_t incarnation = 0;
  std::string node;  ///< name
  std::string
      what;  ///< "started", "failed", "ended", "moved", "decision", "infeasible", "state", …
  std::string text;  ///< reason with the exception's text; of a decision: what, attempt, delay
};

/// One transaction.
struct RunBatch {
  std::vector<RunRecord> runs;
  std::vector<ReplicaRecord> replicas;
  std::vector<std::string> forget_runs;  ///< ids: records and replicas go, events stay
  std::vector<RunEvent> events;          ///< `seq` is set by the store
  bool empty() const {
    return runs.empty() && replicas.empty() && forget_runs.empty() && events.empty();
  }
};

struct RunTables {
  std::vector<RunRecord> runs;          ///< by creation
  std::vector<ReplicaRecord> replicas;  ///< by run, role, index
};

class RunStore {
 public:
  static constexpr std::uint64_t kept_events = 100'000;  ///< the oldest go

  virtual ~RunStore() = default;
  virtual expected<RunTables> load() = 0;
  /// All of it or nothing.
  virtual expected<void> commit(RunBatch& batch) = 0;
  /// After `after_seq`, oldest first, at most `limit`; `after_seq` 0: the newest `limit`. `run`: id or name, "": all.
  virtual expected<std::vector<RunEvent>> events(const std::string& run, std::uint64_t after_seq,
                                                 std::uint32_t limit) = 0;
};

std::unique_ptr<RunStore> make_memory_run_store();

/// SQLite (WAL, synchronous=FULL) in `folder`/runs.db. The folder's lock is held by the broker's store. ec::malformed (not a
/// database of ours, or of a later version), ec::system_error.
expected<std::unique_ptr<RunStore>> open_run_store(const std::string& folder);

}  // namespace troupe
