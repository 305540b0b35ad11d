// Why: what every node knows about the cluster it is in. The broker owns the view; nodes hold copies that
// deltas keep up to date. Types here are values that travel between nodes, and pure functions on them.
// Thread-safety: values; a `View` is not synchronised, share it as `std::shared_ptr<const View>`.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "net/error.hpp"
#include "net/node_id.hpp"

namespace troupe {

using Milliseconds = std::chrono::milliseconds;

/// Where a member stands. joining, up, suspect and draining are live states; down and left are final
/// for an incarnation.
enum class MemberState : std::uint8_t {
  joining,   ///< accepted, has not confirmed the view yet
  up,        ///< takes part
  suspect,   ///< an observer does not hear it; comes back or goes down
  down,      ///< declared dead; this incarnation is fenced
  draining,  ///< takes no new work, will leave
  left,      ///< has left by itself
};

/// Lower-case name, e.g. "draining".
std::string_view to_string(MemberState state) noexcept;
std::optional<MemberState> member_state_from_string(std::string_view name) noexcept;

constexpr bool is_live(MemberState state) noexcept {
  return state != MemberState::down && state != MemberState::left;
}

/// One incarnation of a node's membership.
struct Member {
  NodeId id;
  /// Given by the broker at each join that is not a return; unique and growing within the cluster.
  std::uint64_t incarnation = 0;
  std::string name;
  std::string address;  ///< "host:port" at which peers dial it
  std::string host;     ///< host name, for people
  std::string build;
  std::uint64_t pid = 0;
  bool head = false;  ///< hosts the broker
  /// "cpu" (cores), "memory" (bytes), "gpu" (devices), and whatever the operator adds.
  std::map<std::string, double> resources;
  std::map<std::string, std::string> labels;
  MemberState state = MemberState::joining;
  /// True from the order to drain on, also while suspect.
  bool draining = false;
  std::string reason;         ///< why it is in this state
  std::int64_t since_ms = 0;  ///< when it entered the state: broker's wall clock, ms since 1970
  std::uint64_t epoch = 0;    ///< of its last change
};

template <class Inspector>
auto inspect(Inspector& f, Member& x) {
  return f(x.id, x.incarnation, x.name, x.address, x.host, x.build, x.pid, x.head, x.resources,
           x.labels, x.state, x.draining, x.reason, x.since_ms, x.epoch);
}

/// All changes between two epochs, as the members' records after the last of them.
struct ViewDelta {
  std::uint64_t term = 0;   ///< of the broker that sent it
  std::uint64_t base = 0;   ///< applies to a view of this epoch …
  std::uint64_t epoch = 0;  ///< … and makes it one of this
  std::vector<Member> changed;
};

template <class Inspector>
auto inspect(Inspector& f, ViewDelta& x) {
  return f(x.term, x.base, x.epoch, x.changed);
}

/// Whose cluster it is. `term` grows with each start of the broker: who knows a greater one for the
/// same cluster id does not listen to a smaller one.
struct BrokerInfo {
  std::string cluster;
  NodeId cluster_id;
  std::uint64_t term = 0;
  NodeId broker;
  std::string address;
};

template <class Inspector>
auto inspect(Inspector& f, BrokerInfo& x) {
  return f(x.cluster, x.cluster_id, x.term, x.broker, x.address);
}

struct ViewSnapshot {
  BrokerInfo broker;
  std::uint64_t epoch = 0;
  std::vector<Member> members;  ///< live ones, and the most recent ended ones
};

template <class Inspector>
auto inspect(Inspector& f, ViewSnapshot& x) {
  return f(x.broker, x.epoch, x.members);
}

/// The members at one epoch. Of ended members only the last `kept_ended` are remembered, so that a view
/// does not grow with the age of a cluster; copies that apply the same changes forget the same ones.
class View {
 public:
  static constexpr std::size_t kept_ended = 64;

  enum class Applied : std::uint8_t { yes, old, gap };

  View() = default;
  explicit View(ViewSnapshot snapshot);

  /// `old`: nothing new in it; `gap`: changes are missing in between, ask for a snapshot.
  Applied apply(const ViewDelta& delta);

  /// Inserts or replaces one record without a change of epoch (the broker's own use).
  void put(const Member& member);
  void set_epoch(std::uint64_t epoch) noexcept { epoch_ = epoch; }
  void set_broker(BrokerInfo broker) { broker_ = std::move(broker); }

  std::uint64_t epoch() const noexcept { return epoch_; }
  const BrokerInfo& broker() const noexcept { return broker_; }

  /// Live members by id.
  const std::map<NodeId, Member>& live() const noexcept { return live_; }
  /// Ended incarnations, oldest first.
  const std::deque<Member>& ended() const noexcept { return ended_; }
  /// The live member, or null.
  const Member* find(const NodeId& id) const;
  const Member* find(const NodeId& id, std::uint64_t incarnation) const;
  /// Live members with this name, address or the start of this id (at least 4 digits).
  std::vector<const Member*> match(std::string_view text) const;

  ViewSnapshot snapshot() const;

  /// Covers the epoch and all live members; equal views have equal hashes.
  std::uint64_t hash() const;

 private:
  BrokerInfo broker_;
  std::uint64_t epoch_ = 0;
  std::map<NodeId, Member> live_;
  std::deque<Member> ended_;
};

/// Who observes whom beside the head, which observes all: the next `count` healthy members (up, draining or
/// joining) after the subject in the order of ids, as a ring. Every node comes to the same answer.
std::vector<NodeId> observers_of(const View& view, const NodeId& subject, std::size_t count);

/// The live members that `self` has to observe as their ring observer.
std::vector<NodeId> subjects_of(const View& view, const NodeId& self, std::size_t count);

/// Times and limits of membership. The defaults suit a LAN; `loopback` is for tests on one machine.
struct MembershipTimes {
  Milliseconds heartbeat_interval{1'000};
  /// An observer suspects a member whose phi (net/phi.hpp) exceeds this.
  double suspect_phi = 8.0;
  /// Silence beyond the interval that is forgiven (scheduling, garbage of other processes).
  Milliseconds heartbeat_pause{1'000};
  /// Suspicion lasts this long before a confirmed suspect is declared down.
  Milliseconds down_after{5'000};
  /// A suspect for which nobody vouches and whose observers cannot be confirmed goes down after this.
  Milliseconds lone_down_after{60'000};
  /// How long a node keeps exclusive things without hearing the broker; the broker waits as long after
  /// it declared a member down before it gives them to another, unless the process is known to be gone.
  Milliseconds lease{10'000};
  /// After a start of the broker, known members have this long to come back before they are suspected.
  Milliseconds head_grace{30'000};
  /// A node compares its view with the broker's this often.
  Milliseconds sync_interval{10'000};
  /// Work on a draining node may take this long.
  Milliseconds drain_deadline{30'000};
  /// A node whose wall clock is further off is refused.
  Milliseconds max_clock_skew{30'000};
  /// Changes within this time travel as one delta; 0: as soon as the broker has worked off its queue.
  Milliseconds batch{0};
  /// Ring observers per member, beside the head.
  std::uint32_t observers = 2;

  static MembershipTimes loopback();
};

template <class Inspector>
auto inspect(Inspector& f, MembershipTimes& x) {
  return f(x.heartbeat_interval, x.suspect_phi, x.heartbeat_pause, x.down_after, x.lone_down_after,
           x.lease, x.head_grace, x.sync_interval, x.drain_deadline, x.max_clock_skew, x.batch,
           x.observers);
}

/// One line of the membership history.
struct MemberEvent {
  std::uint64_t seq = 0;
  std::int64_t time_ms = 0;  ///< broker's wall clock, ms since 1970
  std::uint64_t epoch = 0;
  NodeId node;
  std::uint64_t incarnation = 0;
  std::string name;
  std::string address;
  std::string what;  ///< name of the new state, or "cluster", "refused", "returned"
  std::string reason;
};

template <class Inspector>
auto inspect(Inspector& f, MemberEvent& x) {
  return f(x.seq, x.time_ms, x.epoch, x.node, x.incarnation, x.name, x.address, x.what, x.reason);
}

/// One path of the directory.
struct DirectoryEntry {
  std::string path;
  NodeId node;                    ///< zero: nobody hosts it
  std::uint64_t incarnation = 0;  ///< of the hosting member
  std::string address;
  bool exclusive = false;
  /// How often the path was claimed: its own incarnation. Never reused.
  std::uint64_t generation = 0;
  /// Of the directory, raised by every change of any path.
  std::uint64_t epoch = 0;
};

template <class Inspector>
auto inspect(Inspector& f, DirectoryEntry& x) {
  return f(x.path, x.node, x.incarnation, x.address, x.exclusive, x.generation, x.epoch);
}

}  // namespace troupe
