// Why: what agents (one per node) and the broker say to each other. All of it travels on the control lane.
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "net/type_registry.hpp"
#include "supervision/membership.hpp"

namespace troupe {

/// Names under which the actors are published (net::Mesh::publish).
inline constexpr const char* broker_actor_name = "troupe.broker";
inline constexpr const char* agent_actor_name = "troupe.agent";

/// agent -> any agent: who is your broker? Answer: WhoIsReply.
struct WhoIsBroker {
  NodeId asker;
};
template <class Inspector>
auto inspect(Inspector& f, WhoIsBroker& x) {
  return f(x.asker);
}

struct WhoIsReply {
  BrokerInfo broker;       ///< node id zero: not known
  bool connected = false;  ///< whether the answering node is a member and hears that broker now
};
template <class Inspector>
auto inspect(Inspector& f, WhoIsReply& x) {
  return f(x.broker, x.connected);
}

/// agent of a head -> agents of members, after a restart: "I am your broker now, come back".
struct BrokerHere {
  BrokerInfo broker;
};
template <class Inspector>
auto inspect(Inspector& f, BrokerHere& x) {
  return f(x.broker);
}

/// agent -> broker. `member` carries id, name, address, resources and so on; incarnation 0 asks for a new
/// one, another says "I am back". Answer: JoinReply.
struct JoinRequest {
  Member member;
  NodeId cluster_id;       ///< zero when it was in none
  std::uint64_t term = 0;  ///< greatest the node has seen of that cluster
  std::uint64_t epoch = 0;
  std::int64_t clock_ms = 0;  ///< wall clock, ms since 1970
};
template <class Inspector>
auto inspect(Inspector& f, JoinRequest& x) {
  return f(x.member, x.cluster_id, x.term, x.epoch, x.clock_ms);
}

struct JoinReply {
  /// none: accepted. session_lost: this incarnation is fenced, stop everything and join anew.
  /// unauthorized and others: refused for good, `text` says why. closed: this broker is outdated.
  ec code = ec::none;
  std::string text;
  std::uint64_t incarnation = 0;
  ViewSnapshot snapshot;
  MembershipTimes times;
};
template <class Inspector>
auto inspect(Inspector& f, JoinReply& x) {
  return f(x.code, x.text, x.incarnation, x.snapshot, x.times);
}

/// agent -> broker: "I hold this view". The first one makes a joining member up. Answer: SyncReply.
struct SyncRequest {
  NodeId node;
  std::uint64_t incarnation = 0;
  std::uint64_t term = 0;
  std::uint64_t epoch = 0;
};
template <class Inspector>
auto inspect(Inspector& f, SyncRequest& x) {
  return f(x.node, x.incarnation, x.term, x.epoch);
}

struct SyncReply {
  /// none: fine. session_lost: fenced. closed: this broker is outdated.
  ec code = ec::none;
  std::string text;
  ViewDelta delta;                     ///< what is missing; empty when base == epoch
  std::vector<ViewSnapshot> snapshot;  ///< at most one, instead of the delta
};
template <class Inspector>
auto inspect(Inspector& f, SyncReply& x) {
  return f(x.code, x.text, x.delta, x.snapshot);
}

enum class Observed : std::uint8_t {
  alive,
  suspect,  ///< not heard
  gone,     ///< nothing listens at its address, or another node does
};

/// agent -> broker, when an observer changes its mind, and once more with each sync.
struct Observation {
  NodeId observer;
  std::uint64_t observer_incarnation = 0;
  NodeId subject;
  std::uint64_t subject_incarnation = 0;
  Observed state = Observed::alive;
  std::string reason;
};
template <class Inspector>
auto inspect(Inspector& f, Observation& x) {
  return f(x.observer, x.observer_incarnation, x.subject, x.subject_incarnation, x.state, x.reason);
}

/// broker -> agent: this incarnation has been declared down.
struct Fenced {
  NodeId node;
  std::uint64_t incarnation = 0;
  std::uint64_t term = 0;
  bool final = false;  ///< replaced by another process: do not come back
  std::string reason;
};
template <class Inspector>
auto inspect(Inspector& f, Fenced& x) {
  return f(x.node, x.incarnation, x.term, x.final, x.reason);
}

/// anybody -> broker: drain the live member that `node` names (name, address or id). Answer: CommandReply.
struct DrainRequest {
  std::string node;
  std::int64_t deadline_ms = 0;  ///< 0: the cluster's default
  std::string reason;
};
template <class Inspector>
auto inspect(Inspector& f, DrainRequest& x) {
  return f(x.node, x.deadline_ms, x.reason);
}

struct CommandReply {
  ec code = ec::none;
  std::string text;
  NodeId node;
};
template <class Inspector>
auto inspect(Inspector& f, CommandReply& x) {
  return f(x.code, x.text, x.node);
}

/// broker -> agent.
struct DrainOrder {
  std::uint64_t incarnation = 0;
  std::int64_t deadline_ms = 0;
  std::string reason;
};
template <class Inspector>
auto inspect(Inspector& f, DrainOrder& x) {
  return f(x.incarnation, x.deadline_ms, x.reason);
}

/// agent -> broker, when everything it hosted is gone. Answer: CommandReply.
struct LeaveRequest {
  NodeId node;
  std::uint64_t incarnation = 0;
  std::string reason;
};
template <class Inspector>
auto inspect(Inspector& f, LeaveRequest& x) {
  return f(x.node, x.incarnation, x.reason);
}

/// anybody -> broker. Answer: EventsReply, the oldest first.
struct EventsRequest {
  std::uint64_t after_seq = 0;
  std::uint32_t limit = 1000;
};
template <class Inspector>
auto inspect(Inspector& f, EventsRequest& x) {
  return f(x.after_seq, x.limit);
}

struct EventsReply {
  std::vector<MemberEvent> events;
};
template <class Inspector>
auto inspect(Inspector& f, EventsReply& x) {
  return f(x.events);
}

/// agent -> broker: this node hosts `path` (or wants to, when exclusive). Answer: ClaimReply.
struct ClaimRequest {
  std::string path;
  NodeId node;
  std::uint64_t incarnation = 0;
  bool exclusive = false;
  /// 0: something new is to be hosted, which gets a generation of its own even when this node held the
  /// path before. Otherwise: "I still host this generation", granted when the directory agrees.
  std::uint64_t generation = 0;
};
template <class Inspector>
auto inspect(Inspector& f, ClaimRequest& x) {
  return f(x.path, x.node, x.incarnation, x.exclusive, x.generation);
}

struct ClaimReply {
  /// none: granted. would_block: held by `entry.node`, or by a member that went down and whose lease
  /// has not run out; ask again after `retry_ms`. session_lost: the claimant is fenced.
  ec code = ec::none;
  std::string text;
  std::int64_t retry_ms = 0;
  DirectoryEntry entry;
};
template <class Inspector>
auto inspect(Inspector& f, ClaimReply& x) {
  return f(x.code, x.text, x.retry_ms, x.entry);
}

/// agent -> broker: gives `path` back, if it is still of that generation; 0: whichever the node holds, after
/// a claim whose answer was lost. Answer: CommandReply.
struct ReleaseRequest {
  std::string path;
  NodeId node;
  std::uint64_t generation = 0;
};
template <class Inspector>
auto inspect(Inspector& f, ReleaseRequest& x) {
  return f(x.path, x.node, x.generation);
}

/// agent -> broker: where is `path`? Changes of it follow as DirectoryUpdate from then on. Answer: DirectoryUpdate
/// with one entry (node zero: nobody hosts it).
struct ResolveRequest {
  std::string path;
  NodeId node;  ///< who asks
};
template <class Inspector>
auto inspect(Inspector& f, ResolveRequest& x) {
  return f(x.path, x.node);
}

struct DirectoryUpdate {
  std::uint64_t term = 0;
  std::vector<DirectoryEntry> entries;
};
template <class Inspector>
auto inspect(Inspector& f, DirectoryUpdate& x) {
  return f(x.term, x.entries);
}

/// Registers all of these, for `NodeOptions::types` and tests.
expected<void> add_membership_types(net::TypeRegistry& registry);

}  // namespace troupe
