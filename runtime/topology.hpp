// Why: what an author of an algorithm writes down: which roles there are, how many of each, who talks to whom, where
// they may live, and who restarts them. The same model whether it is built in C++ or read from a TOML file; checked as a
// whole before anything starts, so that a mistake costs a second and not a night.
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "net/error.hpp"
#include "supervision/supervisor.hpp"

namespace troupe {

class RoleRegistry;

enum class PlacementStrategy : std::uint8_t {
  spread,  ///< the node with the fewest replicas of the run
  pack,    ///< fill one node before the next
};

enum class EdgePattern : std::uint8_t {
  all_to_all,  ///< each of `from` sees all of `to`
  one_to_one,  ///< i sees i; counts must be equal, or i modulo the count of `to` when elastic
  sharded,     ///< `from` i of n sees the one shard i * m / n of `to`'s m: contiguous, equal blocks
  nearest,  ///< one of `to` on the same node if there is one, else on the same host, else i modulo m
  ring,  ///< i sees i + 1, the last sees 0; `from` and `to` are the same role or have equal counts
};

struct Placement {
  PlacementStrategy strategy = PlacementStrategy::spread;
  std::map<std::string, std::string> labels;  ///< all must be equal on the node
  std::map<std::string, double> resources;  ///< per replica: "cpu", "memory" (bytes), "gpu", custom
  std::string with;  ///< on the node of that role's replica (index modulo its count)
  std::vector<std::string>
      apart_from;          ///< never on a node that hosts these; its own name: one per node
  bool exclusive = false;  ///< at most one holder of the path at any moment, backed by the lease
};

struct SnapshotPolicy {
  Milliseconds every{0};       ///< 0: not by time
  std::uint64_t messages = 0;  ///< after so many handled messages; 0: not by count
  std::uint32_t copies = 1;    ///< on so many other nodes, beside the own disk
  bool required =
      true;  ///< a snapshot that exists but cannot be fetched fails the start; false: starts empty
};

/// Replicas of one role start all at once.
inline SupervisorSpec parallel_supervision() {
  SupervisorSpec spec;
  spec.sequential = false;
  return spec;
}

struct RoleSpec {
  std::string name;
  std::string type;  ///< as registered
  nlohmann::json config = nlohmann::json::object();
  std::uint32_t replicas = 1;            ///< at least (elastic) or exactly so many
  std::uint32_t most = 1;                ///< equal to `replicas` unless elastic
  std::vector<std::string> start_after;  ///< roles or groups that must have started before
  Placement place;
  SupervisorSpec supervision = parallel_supervision();  ///< of the replicas
  ChildKind kind = ChildKind::permanent;
  bool significant =
      false;  ///< the run is done when all replicas of all significant roles have ended normally
  Milliseconds stop_deadline{5'000};  ///< then it is killed
  SnapshotPolicy snapshot;
  std::uint32_t buffer =
      1024;  ///< messages from one node that wait for a replica that is not there
  Milliseconds buffer_for{5'000};
  std::uint32_t mailbox = 100'000;  ///< messages that may wait in a replica; more are refused
  Milliseconds hung_after{0};       ///< a handler that runs for longer is a failure; 0: never
  int line = 0;                     ///< in the file, 0 when built
};

struct EdgeSpec {
  std::string name;  ///< "to" by default; unique per `from`
  std::string from;
  std::string to;
  EdgePattern pattern = EdgePattern::all_to_all;
  int line = 0;
};

/// A supervisor over roles and other groups, in start order. A child of it that fails is one whose own budget is
/// exceeded.
struct GroupSpec {
  std::string name;
  std::vector<std::string> children;  ///< roles or groups, each in at most one group
  SupervisorSpec supervision;
  ChildKind kind = ChildKind::permanent;
  int line = 0;
};

enum class OnFailure : std::uint8_t {
  fail,  ///< the run ends with the reason
  restart,  ///< everything is stopped and started anew from the last snapshots, `run_restarts` times at most
};
enum class OnInfeasible : std::uint8_t { wait, fail };
enum class Rebalance : std::uint8_t {
  never,
  on_join,  ///< replicas move to new nodes until `spread` is even again; state moves by snapshot
};

struct Topology {
  std::string name;
  std::uint64_t seed = 0;
  OnFailure on_failure = OnFailure::fail;
  std::uint32_t run_restarts = 3;
  OnInfeasible on_infeasible = OnInfeasible::wait;
  Rebalance rebalance = Rebalance::never;
  SupervisorSpec supervision;  ///< of the run: over the roles and groups that are in no group
  std::vector<RoleSpec> roles;
  std::vector<EdgeSpec> edges;
  std::vector<GroupSpec> groups;
  std::string file;  ///< for places in errors

  const RoleSpec* find_role(std::string_view role) const;
  const GroupSpec* find_group(std::string_view group) const;
  /// Children of a group, or of the run for "", ordered by `start_after`, then as written. The topology is valid.
  std::vector<std::string> ordered_children(std::string_view group) const;
};

/// All that is wrong with a topology, each with "FILE:LINE: " where there is a line: names (1 to 64 of
/// [a-z A-Z 0-9 _ . -], unique among roles and groups), unknown roles in edges, groups, placement and order (with
/// the nearest that exists), cycles in start order and groups, counts, budgets, negative or non-finite resources,
/// contradictions (with and apart_from), a role type that `types` does not know and a configuration that it refuses.
/// `types` null: types and configurations are not looked at. Empty: it is fine.
std::vector<error> check(const Topology& topology, const RoleRegistry* types = nullptr);

/// Reads TOML. `sets`: "role.worker.replicas=8", "role.worker.config.rounds=3", "run.seed=7" in that order override
/// what the file says (the value is TOML, or else text); an unknown key is an error with the nearest known one.
/// Errors are ec::invalid_argument and list every problem found, one per line. Does not call `check`.
expected<Topology> parse_topology(std::string_view document, const std::string& file,
                                  const std::vector<std::string>& sets = {});
expected<Topology> read_topology(const std::string& file,
                                 const std::vector<std::string>& sets = {});

/// TOML that `parse_topology` reads to an equal topology (but for lines and file). How topologies travel.
std::string print_topology(const Topology& topology);

/// The supervision tree with roles, counts, edges and placement as text; and as a Graphviz digraph of roles and edges.
std::string show_topology(const Topology& topology);
std::string topology_dot(const Topology& topology);

/// What a replica sees over an edge: indices of `to`, given both counts (nearest: decided by the caller).
std::vector<std::uint32_t> edge_targets(EdgePattern pattern, std::uint32_t index,
                                        std::uint32_t from_count, std::uint32_t to_count);

/// Writes a topology in C++:
///   auto topology = TopologyBuilder{"ring"}.seed(1)
///       .role("member", "ring.member", {{"rounds", 10}}).replicas(4)
///       .edge("member", "member", EdgePattern::ring).build();
/// `role` and `group` make what follows apply to them, until the next one. `build` never fails; `check` says what is wrong.
class TopologyBuilder {
 public:
  explicit TopologyBuilder(std::string name);
  TopologyBuilder& seed(std::uint64_t seed);
  TopologyBuilder& on_failure(OnFailure what, std::uint32_t restarts = 3);
  TopologyBuilder& on_infeasible(OnInfeasible what);
  TopologyBuilder& rebalance(Rebalance when);
  TopologyBuilder& role(std::string name, std::string type,
                        nlohmann::json config = nlohmann::json::object());
  TopologyBuilder& replicas(std::uint32_t count);
  TopologyBuilder& elastic(std::uint32_t least, std::uint32_t most);
  TopologyBuilder& start_after(std::string role);
  TopologyBuilder& place(Placement place);
  TopologyBuilder& exclusive();
  TopologyBuilder& resources(std::map<std::string, double> per_replica);
  TopologyBuilder& snapshot(SnapshotPolicy policy);
  TopologyBuilder& stop_deadline(Milliseconds deadline);
  TopologyBuilder& hung_after(Milliseconds limit);
  TopologyBuilder& mailbox(std::uint32_t messages);
  TopologyBuilder& buffer(std::uint32_t messages, Milliseconds wait);
  TopologyBuilder& significant();
  /// Of the role or group named last; of the run before any.
  TopologyBuilder& strategy(Strategy strategy);
  TopologyBuilder& budget(std::uint32_t restarts, Milliseconds within);
  TopologyBuilder& backoff(Backoff backoff);
  TopologyBuilder& kind(ChildKind kind);
  TopologyBuilder& group(std::string name, std::vector<std::string> children);
  TopologyBuilder& edge(std::string from, std::string to,
                        EdgePattern pattern = EdgePattern::all_to_all, std::string name = {});
  Topology build() const;

 private:
  SupervisorSpec& supervision();
  RoleSpec& last_role();
  Topology topology_;
  enum class Last : std::uint8_t { run, role, group } last_ = Last::run;
};

}  // namespace troupe
