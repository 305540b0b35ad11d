// Why: the rules of membership as a state machine without clock, threads, network or files, so that tables and
// simulations can test every order of events. The broker actor feeds it and carries out what it says.
// Thread-safety: none; the broker actor owns it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "net/executor.hpp"
#include "supervision/membership.hpp"
#include "supervision/membership_messages.hpp"

namespace troupe {

/// Both clocks at one instant: intervals are measured by the steady one.
struct Moment {
  net::TimePoint steady;
  std::int64_t wall_ms = 0;
};

/// An incarnation that may not come back.
struct Tombstone {
  NodeId node;
  std::uint64_t incarnation = 0;
  bool replaced = false;  ///< another process took its place: the node id is out for good
  std::int64_t time_ms = 0;
  std::string reason;
};

/// What a broker keeps over a restart.
struct BrokerState {
  std::string cluster;
  NodeId cluster_id;       ///< zero: a new cluster
  std::uint64_t term = 0;  ///< of the last broker
  NodeId broker;           ///< node id of the last broker
  std::uint64_t epoch = 0;
  std::uint64_t next_incarnation = 1;
  std::uint64_t next_event = 1;
  std::uint64_t directory_epoch = 0;
  std::vector<Member> members;  ///< live ones, and the last ended ones
  std::vector<Tombstone> tombstones;
  std::vector<DirectoryEntry> directory;
};

/// What changed since the last batch: to be stored first and told afterwards.
struct BrokerBatch {
  std::uint64_t epoch = 0;
  std::uint64_t next_incarnation = 0;
  std::uint64_t next_event = 0;
  std::uint64_t directory_epoch = 0;
  ViewDelta delta;                    ///< base == epoch when the view did not change
  std::vector<Tombstone> tombstones;  ///< new ones
  std::vector<Tombstone> forgotten;   ///< tombstones that went, to bound their number
  std::vector<MemberEvent> events;
  std::vector<DirectoryEntry> directory;   ///< new state of changed paths
  std::vector<std::string> removed_paths;  ///< paths that nobody hosts and that were forgotten
  std::vector<Fenced> fenced;              ///< to be told, if they can be reached
  struct Order {
    NodeId node;
    DrainOrder order;
  };
  std::vector<Order> drains;

  bool empty() const;
};

struct BrokerCoreConfig {
  std::string cluster;
  NodeId self;            ///< node that hosts the broker
  std::string address;    ///< its address
  NodeId new_cluster_id;  ///< used when the state has none
  MembershipTimes times;
  std::size_t max_members = 10'000;
  std::size_t max_tombstones = 10'000;
  std::size_t max_paths = 200'000;
  std::size_t max_delta_log = 1'024;  ///< member changes kept to answer syncs without a snapshot
};

class BrokerCore {
 public:
  /// Starts a term: what the last broker left is taken over, its own node is declared down (its process
  /// is known to be gone) and every other live member has `head_grace` to come back.
  BrokerCore(BrokerCoreConfig config, BrokerState state, Moment now);
  ~BrokerCore();
  BrokerCore(const BrokerCore&) = delete;
  BrokerCore& operator=(const BrokerCore&) = delete;

  const View& view() const noexcept;
  const BrokerInfo& info() const noexcept;
  std::size_t tombstone_count() const noexcept;

  /// True once a member has shown a greater term for this cluster: this broker must end.
  bool outdated() const noexcept;

  JoinReply join(const JoinRequest& request, Moment now);
  SyncReply sync(const SyncRequest& request, Moment now);
  void observe(const Observation& observation, Moment now);
  CommandReply drain(const DrainRequest& request, Moment now);
  CommandReply leave(const LeaveRequest& request, Moment now);

  ClaimReply claim(const ClaimRequest& request, Moment now);
  CommandReply release(const ReleaseRequest& request, Moment now);
  /// The entry and a standing interest of `node` in the path.
  DirectoryUpdate resolve(const ResolveRequest& request, Moment now);
  /// Who wants to hear of `path`. A member that ends loses its interests.
  const std::set<NodeId>& interested(const std::string& path) const;
  std::optional<DirectoryEntry> entry(const std::string& path) const;

  /// Does what has become due. Call at `next_deadline` at the latest.
  void tick(Moment now);
  std::optional<net::TimePoint> next_deadline() const;

  /// Takes the changes so far.
  BrokerBatch take_batch();
  bool has_changes() const;

  /// Everything, as a store would have it after all batches.
  BrokerState state() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
