// Why: where a replica lives follows from what it needs, what nodes have, and what is there already. A pure function, so
// that equal inputs give equal answers on every head and the rules can be tested without a cluster.
// Thread-safety: functions on values.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "net/node_id.hpp"
#include "runtime/topology.hpp"

namespace troupe {

/// A node as placement sees it.
struct PlacementNode {
  NodeId id;
  std::string name;
  std::string host;
  bool takes_new = true;                    ///< up and not draining
  std::map<std::string, double> resources;  ///< in all
  std::map<std::string, double> used;       ///< by other runs
  std::map<std::string, std::string> labels;
  std::set<std::string> types;  ///< role types it can host
};

struct PlacedReplica {
  std::size_t role = 0;  ///< index into Topology::roles
  std::uint32_t index = 0;
  NodeId node;
};

struct WantedReplica {
  std::size_t role = 0;
  std::uint32_t index = 0;
  NodeId avoid;  ///< rather not there (it has just failed there); zero: no matter
};

struct UnplacedReplica {
  WantedReplica replica;
  /// What is missing, for people: "no node knows role type \"x\" (load its module with --module); 3 nodes have too
  /// little cpu: 4 wanted, at most 2 free on node \"a\"".
  std::string reason;
};

struct PlacementResult {
  std::vector<PlacedReplica> placed;
  std::vector<UnplacedReplica> unplaced;
};

/// Places `wanted` in the order given, beside what exists. Roles named by `with` must be among `existing` or come
/// earlier in `wanted`. Ties go by node name, then id. Costs O((wanted + existing) log nodes) for roles without
/// labels, with and apart_from (2,000 replicas on 1,000 nodes in milliseconds).
PlacementResult place_replicas(const Topology& topology, const std::vector<PlacementNode>& nodes,
                               const std::vector<PlacedReplica>& existing,
                               const std::vector<WantedReplica>& wanted);

struct ReplicaMove {
  std::size_t role = 0;
  std::uint32_t index = 0;
  NodeId from;
  NodeId to;
};

/// The fewest moves after which no node has more than one replica of a `spread` role above another node that could take
/// it, at most `limit` of them. Roles with `with`, `pack` or `exclusive` stay. Applying them and asking again ends: nothing moves
/// back and forth.
std::vector<ReplicaMove> rebalance_replicas(const Topology& topology,
                                            const std::vector<PlacementNode>& nodes,
                                            const std::vector<PlacedReplica>& existing,
                                            std::size_t limit);

}  // namespace troupe
