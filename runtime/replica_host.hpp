// Why: each node has one replica host beside its agent. It turns orders of the run manager into actors, watches them,
// keeps the run's table and the references of its replicas pointed at the right places, stores and fetches
// snapshots, and reports what happens. It decides nothing about restarts.
// Thread-safety: every member from any thread. The host runs on a thread of its own, user code never does.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>

#include "net/mesh.hpp"
#include "runtime/agent.hpp"
#include "runtime/role.hpp"
#include "runtime/run_messages.hpp"
#include "runtime/snapshot_store.hpp"

namespace troupe {

struct ReplicaHostOptions {
  NodeId self;
  const RoleRegistry* roles = &RoleRegistry::global();
  std::shared_ptr<SnapshotStore> snapshots;  ///< null: in memory
  std::function<std::int64_t()> wall_ms;     ///< empty: the system's clock
  /// Threads of their own for the host, the snapshot store and roles that ask for one; simulations run everything on
  /// their scheduler.
  bool detached = true;
};

struct ReplicaHostCounters {
  std::atomic<std::uint64_t> hosted{0};     ///< replicas that live
  std::atomic<std::uint64_t> abandoned{0};  ///< killed ones whose handler has not returned
  std::atomic<std::uint64_t> started{0};
  std::atomic<std::uint64_t> failed{0};
  std::atomic<std::uint64_t> snapshots{0};
  std::atomic<std::uint64_t> refused{0};  ///< messages refused by full mailboxes
};

class ReplicaHost {
 public:
  /// All must outlive `stop`. Publishes itself as `replica_host_name`.
  static std::shared_ptr<ReplicaHost> start(caf::actor_system& system, net::Mesh& mesh,
                                            std::shared_ptr<Agent> agent,
                                            ReplicaHostOptions options);
  ~ReplicaHost();
  ReplicaHost(const ReplicaHost&) = delete;
  ReplicaHost& operator=(const ReplicaHost&) = delete;

  const caf::actor& actor() const noexcept { return actor_; }
  std::shared_ptr<const ReplicaHostCounters> counters() const noexcept { return counters_; }

  /// A reference to a replica of any run, for programs that are no role: "run/role/index", by the run's name. Messages
  /// wait until the run and the replica are known, as for roles.
  caf::actor ref(const std::string& path);

  /// This node's incarnation is over: every replica is killed, the runs are forgotten. (AgentHooks::on_fenced.)
  void fence(const std::string& reason);
  /// `fn` runs once no replica lives here, on the host's thread; at once if none does. (AgentHooks::on_drain: the
  /// manager sees the member draining and moves its replicas.)
  void when_empty(std::function<void()> fn);

  /// Kills every replica and ends. Does not block.
  void stop();

 private:
  ReplicaHost() = default;
  caf::actor actor_;
  std::shared_ptr<ReplicaHostCounters> counters_;
};

}  // namespace troupe
