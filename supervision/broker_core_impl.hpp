// Why: the parts of BrokerCore that its source files share; not for other code.
// Thread-safety: none, as BrokerCore.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "supervision/broker_core.hpp"
#include "supervision/broker_core_directory.hpp"

namespace troupe::broker {

/// Changed members by the epoch of their last change: each member stands in it once, so a delta is a tail of it.
class ChangeLog {
 public:
  explicit ChangeLog(std::uint64_t floor) : floor_(floor) {}

  void add(const Member& member);
  /// Forgets the oldest beyond `limit`, but nothing after `keep_after`.
  void trim(std::size_t limit, std::uint64_t keep_after);
  bool reaches(std::uint64_t epoch) const noexcept { return epoch >= floor_; }
  std::vector<Member> since(std::uint64_t epoch) const;

 private:
  std::map<std::uint64_t, Member> by_epoch_;
  std::unordered_map<std::uint64_t, std::uint64_t> last_;  // incarnation -> epoch of its record
  std::uint64_t floor_;
};

/// Incarnations that may not come back, oldest first, of limited number.
class Tombstones {
 public:
  explicit Tombstones(std::size_t limit) : limit_(limit) {}

  void load(std::vector<Tombstone> tombstones);
  void add(Tombstone tombstone);
  const Tombstone* find(const NodeId& node, std::uint64_t incarnation) const;
  /// The tombstone that says another process took the place of `node`.
  const Tombstone* replaced(const NodeId& node) const;
  std::size_t size() const noexcept { return by_incarnation_.size(); }
  std::vector<Tombstone> all() const;

  std::vector<Tombstone> take_added() { return std::exchange(added_, {}); }
  std::vector<Tombstone> take_forgotten() { return std::exchange(forgotten_, {}); }
  bool changed() const noexcept { return !added_.empty() || !forgotten_.empty(); }

 private:
  void insert(Tombstone tombstone);

  std::size_t limit_;
  std::deque<std::uint64_t> order_;  // incarnations
  std::unordered_map<std::uint64_t, Tombstone> by_incarnation_;
  std::map<NodeId, std::uint64_t> replaced_;
  std::vector<Tombstone> added_;
  std::vector<Tombstone> forgotten_;
};

/// What one observer says of one member.
struct Statement {
  Observed state = Observed::alive;
  std::string reason;
  net::TimePoint said;
};

/// What the core keeps of a live member beside its record.
struct Live {
  std::map<NodeId, Statement> said;  ///< of it, by observer
  std::set<NodeId> speaks_of;        ///< members of which it said something
  bool confirmed = false;            ///< has held the view once
  bool returned = false;             ///< has joined or synced in this term
  std::optional<net::TimePoint> suspected;
  std::optional<net::TimePoint> joining_until;
  std::optional<net::TimePoint> due;
};

/// The statements of a member that stand at one moment.
struct Tally {
  std::size_t gone = 0;
  std::size_t bad = 0;  ///< suspect or gone
  std::size_t vouch = 0;
  bool uncounted_bad = false;
  std::string who;  ///< the counting ones that are not alive, for people
};

/// "name (1a2b3c4d)".
std::string label(const Member& member);

/// A steady deadline that cannot overflow.
net::TimePoint later(net::TimePoint from, Milliseconds by);

}  // namespace troupe::broker

namespace troupe {

struct BrokerCore::Impl {
  Impl(BrokerCoreConfig config, BrokerState state, Moment now);

  // broker_core.cpp
  void adopt(const BrokerState& state, Moment now);
  void begin_term(const BrokerState& state, Moment now);
  void record(Member member);
  void note(const Member& member, std::string_view what, std::string reason, Moment now);
  BrokerBatch take_batch();
  bool has_changes() const;
  BrokerState state() const;

  // broker_core_join.cpp
  JoinReply join(const JoinRequest& request, Moment now);
  JoinReply admit(const JoinRequest& request, Moment now);
  JoinReply welcome_back(const JoinRequest& request, Moment now);
  JoinReply refuse(const JoinRequest& request, std::string_view kind, const std::string& text,
                   Moment now);
  std::string objection(const JoinRequest& request, Moment now) const;
  std::size_t live_after(const Member& joiner) const;
  SyncReply sync(const SyncRequest& request, Moment now);
  void mark_returned(const Member& member, Moment now);
  void clear_address(const Member& joiner, Moment now);
  std::string why_ended(const NodeId& node, std::uint64_t incarnation) const;

  // broker_core_members.cpp
  CommandReply drain(const DrainRequest& request, Moment now);
  CommandReply leave(const LeaveRequest& request, Moment now);
  void order_drain(const Member& member, std::int64_t deadline_ms, std::string reason);
  void down(const NodeId& id, std::string reason, bool certain, bool replaced, Moment now);
  void end(Member member, MemberState state, std::string reason, bool replaced, Moment now);

  // broker_core_detection.cpp
  void observe(const Observation& observation, Moment now);
  void evaluate(const NodeId& id, Moment now);
  void settle(Moment now);
  void tick(Moment now);
  std::optional<net::TimePoint> next_deadline() const;
  void say(const NodeId& observer, const NodeId& subject, broker::Statement statement);
  void forget_statements_about(const NodeId& id, broker::Live& live);
  void withdraw_statements_of(const NodeId& id, broker::Live& live);
  void end_grace(Moment now);
  void schedule(const NodeId& id, broker::Live& live, net::TimePoint now);
  bool stands(const NodeId& observer, const NodeId& subject, const broker::Statement& statement,
              net::TimePoint now) const;
  broker::Tally tally(const NodeId& subject, const broker::Live& live, net::TimePoint now) const;
  void suspect(const NodeId& id, broker::Live& live, const std::string& reason, Moment now);
  void unsuspect(const NodeId& id, broker::Live& live, Moment now);
  void reconsider_subjects(const broker::Live& observer);
  std::size_t enough() const noexcept { return live.size() > 3 ? 2 : 1; }

  MemberState standing_state(const Member& member, const broker::Live& record) const;

  BrokerCoreConfig config;
  BrokerInfo info;
  View view;
  bool outdated = false;
  std::uint64_t next_incarnation = 1;
  std::uint64_t next_event = 1;

  // Ordered: nodes choose their ids, so they could make all of them fall into one bucket.
  std::map<NodeId, broker::Live> live;
  std::unordered_map<std::string, NodeId> by_address;
  std::set<NodeId> suspects;
  /// Suspects to be looked at again, because something they depend on has changed.
  std::set<NodeId> dirty;
  std::set<std::pair<net::TimePoint, NodeId>> deadlines;
  /// Members of an earlier term that have not come back yet.
  std::set<NodeId> awaited;
  std::optional<net::TimePoint> grace_until;

  broker::ChangeLog log;
  broker::Tombstones tombstones;
  broker::Directory directory;
  std::unordered_map<std::string, net::TimePoint> refusals;

  std::uint64_t taken_epoch = 0;
  std::vector<MemberEvent> events;
  std::vector<Fenced> fenced;
  std::vector<BrokerBatch::Order> drains;
};

}  // namespace troupe
