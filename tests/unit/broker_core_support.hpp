// A broker core under virtual time, as the broker actor would drive it.
#pragma once

#include <catch2/catch.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "supervision/broker_core.hpp"

namespace troupe::test {

inline NodeId node(std::uint64_t n) { return {0xA000'0000'0000'0000ULL + n, n}; }

inline constexpr std::uint64_t head_number = 1;

/// "at" in milliseconds since the start.
inline Moment moment(std::int64_t ms) {
  return {net::TimePoint{Milliseconds{1'000'000 + ms}}, 1'700'000'000'000 + ms};
}

/// Everything in one line, for comparisons that show what differs.
inline std::string dump(const Member& m) {
  std::string text = to_string(m.id) + "/" + std::to_string(m.incarnation) + " " + m.name + " " +
                     m.address + " " + m.host + " " + m.build + " " + std::to_string(m.pid) +
                     (m.head ? " head " : " ") + std::string{to_string(m.state)} +
                     (m.draining ? " draining " : " ") + m.reason + " " +
                     std::to_string(m.since_ms) + " @" + std::to_string(m.epoch);
  for (const auto& [key, value] : m.resources) {
    text += " " + key + "=" + std::to_string(value);
  }
  for (const auto& [key, value] : m.labels) {
    text += " " + key + "=" + value;
  }
  return text;
}

inline std::string dump(const DirectoryEntry& e) {
  return e.path + " " + to_string(e.node) + "/" + std::to_string(e.incarnation) + " " + e.address +
         (e.exclusive ? " exclusive " : " ") + std::to_string(e.generation) + " @" +
         std::to_string(e.epoch);
}

inline std::string dump(const MemberEvent& e) {
  return std::to_string(e.seq) + " " + std::to_string(e.time_ms) + " @" + std::to_string(e.epoch) +
         " " + to_string(e.node) + "/" + std::to_string(e.incarnation) + " " + e.name + " " +
         e.address + " " + e.what + " " + e.reason;
}

inline std::vector<std::string> dump(const BrokerState& s) {
  std::vector<std::string> lines{
      s.cluster + " " + to_string(s.cluster_id) + " term " + std::to_string(s.term) + " " +
      to_string(s.broker) + " epoch " + std::to_string(s.epoch) + " incarnation " +
      std::to_string(s.next_incarnation) + " event " + std::to_string(s.next_event) +
      " directory " + std::to_string(s.directory_epoch)};
  for (const auto& member : s.members) {
    lines.push_back(dump(member));
  }
  for (const auto& t : s.tombstones) {
    lines.push_back("tombstone " + to_string(t.node) + "/" + std::to_string(t.incarnation) +
                    (t.replaced ? " replaced " : " ") + std::to_string(t.time_ms) + " " + t.reason);
  }
  for (const auto& entry : s.directory) {
    lines.push_back(dump(entry));
  }
  return lines;
}

class Rig {
 public:
  explicit Rig(BrokerState state = {}, std::uint64_t self = head_number) {
    config.cluster = "test";
    config.self = node(self);
    config.address = address(self);
    config.new_cluster_id = {7, 7};
    config.times.sync_interval = Milliseconds{5'000};
    start(std::move(state));
  }

  static std::string address(std::uint64_t n) { return "10.0.0." + std::to_string(n) + ":7700"; }

  void start(BrokerState state) {
    core = std::make_unique<BrokerCore>(config, std::move(state), now);
  }

  /// The broker ends and another process takes over what it left.
  void restart(std::uint64_t self) {
    auto state = core->state();
    config.self = node(self);
    config.address = address(self);
    start(std::move(state));
  }

  JoinRequest join_request(std::uint64_t n, std::uint64_t incarnation = 0) const {
    JoinRequest request;
    request.member.id = node(n);
    request.member.incarnation = incarnation;
    request.member.name = "node-" + std::to_string(n);
    request.member.address = address(n);
    request.member.host = "host";
    request.member.pid = n;
    request.member.resources = {{"cpu", 4.0}};
    request.clock_ms = now.wall_ms;
    return request;
  }

  JoinReply join(std::uint64_t n, std::uint64_t incarnation = 0) {
    return core->join(join_request(n, incarnation), now);
  }

  SyncReply sync(std::uint64_t n) { return sync(n, incarnation(n)); }
  SyncReply sync(std::uint64_t n, std::uint64_t incarnation) {
    return core->sync({node(n), incarnation, core->info().term, core->view().epoch()}, now);
  }

  /// Joins and syncs all of them; the state afterwards is up.
  void up(std::uint64_t from, std::uint64_t to) {
    for (auto n = from; n <= to; ++n) {
      REQUIRE(join(n).code == ec::none);
      REQUIRE(sync(n).code == ec::none);
      REQUIRE(state(n) == "up");
    }
  }

  void say(std::uint64_t observer, std::uint64_t subject, Observed what, std::string reason = "") {
    core->observe({node(observer), incarnation(observer), node(subject), incarnation(subject), what,
                   std::move(reason)},
                  now);
  }

  /// `generation` 0: something new; otherwise what the node says it still hosts.
  ClaimReply claim(std::uint64_t n, const std::string& path, bool exclusive,
                   std::uint64_t generation = 0) {
    return core->claim({path, node(n), incarnation(n), exclusive, generation}, now);
  }

  const Member* member(std::uint64_t n) const { return core->view().find(node(n)); }
  std::uint64_t incarnation(std::uint64_t n) const {
    const auto* found = member(n);
    return found == nullptr ? 0 : found->incarnation;
  }
  /// Of the live member, or of the last ended one, or "".
  std::string state(std::uint64_t n) const {
    if (const auto* found = member(n)) {
      return std::string{to_string(found->state)};
    }
    const auto& ended = core->view().ended();
    const auto it = std::find_if(ended.rbegin(), ended.rend(),
                                 [&](const Member& m) { return m.id == node(n); });
    return it == ended.rend() ? "" : std::string{to_string(it->state)};
  }
  std::string reason(std::uint64_t n) const {
    if (const auto* found = member(n)) {
      return found->reason;
    }
    for (const auto& ended : core->view().ended()) {
      if (ended.id == node(n)) {
        return ended.reason;
      }
    }
    return "";
  }

  /// Lets time pass, with a tick at each deadline.
  void pass(Milliseconds time) {
    const auto end = moment((now.steady - moment(0).steady) / Milliseconds{1} + time.count());
    while (true) {
      const auto due = core->next_deadline();
      if (!due || *due > end.steady) {
        break;
      }
      // Whole milliseconds, never before the deadline.
      now = moment(
          (std::max(*due, now.steady) - moment(0).steady + Milliseconds{1} - net::Duration{1}) /
          Milliseconds{1});
      core->tick(now);
      const auto next = core->next_deadline();
      REQUIRE((!next || *next > now.steady));
    }
    now = end;
    core->tick(now);
  }

  /// What has happened since the last call: "<node number>:<what>".
  std::vector<std::string> happened() {
    std::vector<std::string> result;
    last = core->take_batch();
    for (const auto& event : last.events) {
      result.push_back(std::to_string(event.node.low()) + ":" + event.what);
    }
    return result;
  }

  BrokerCoreConfig config;
  Moment now = moment(0);
  std::unique_ptr<BrokerCore> core;
  BrokerBatch last;
};

using Strings = std::vector<std::string>;

}  // namespace troupe::test
