// How members go: drain, leave, down.
#include <algorithm>

#include "supervision/broker_core_impl.hpp"

namespace troupe {

namespace {

constexpr std::size_t max_reason_bytes = 512;
constexpr std::size_t max_candidates = 10;

/// How the tombstone of a member that went by itself begins; those of others never do.
constexpr std::string_view left_mark = "left: ";

std::string list(const std::vector<const Member*>& members) {
  std::string text;
  for (std::size_t i = 0; i < members.size() && i < max_candidates; ++i) {
    text += (i == 0 ? "" : ", ") + broker::label(*members[i]) + " at " + members[i]->address;
  }
  if (members.size() > max_candidates) {
    text += " and " + std::to_string(members.size() - max_candidates) + " more";
  }
  return text;
}

std::string clip(const std::string& text) { return text.substr(0, max_reason_bytes); }

}  // namespace

CommandReply BrokerCore::Impl::drain(const DrainRequest& request, Moment now) {
  if (outdated) {
    return {ec::closed, "cannot drain: this broker is outdated, ask the later one", {}};
  }
  const auto found = view.match(request.node);
  if (found.size() != 1) {
    std::vector<const Member*> candidates = found;
    if (found.empty()) {
      for (const auto& [id, member] : view.live()) {
        candidates.push_back(&member);
      }
    }
    return {
        found.empty() ? ec::not_found : ec::conflict,
        "cannot drain " + clip(request.node) + ": " +
            (found.empty() ? "no live member has this name, address or start of an id; there are: "
                           : "it names several members: ") +
            list(candidates),
        {}};
  }
  auto member = *found.front();
  if (request.deadline_ms < 0) {
    return {ec::invalid_argument, "cannot drain: the deadline must not be negative", member.id};
  }
  if (member.id == config.self && live.size() > 1) {
    return {ec::invalid_argument,
            "cannot drain " + broker::label(member) +
                ": the head leaves last; drain the others or stop it with SIGTERM",
            member.id};
  }
  if (!member.draining) {
    member.draining = true;
    const auto reason = clip(request.reason);
    if (member.state == MemberState::up) {
      member.state = MemberState::draining;
      member.since_ms = now.wall_ms;
      member.reason = reason;
    }
    record(member);
    note(member, "draining", reason, now);
  }
  // Again also when it is draining already: the first order may have been lost, or the deadline is new.
  order_drain(member, request.deadline_ms, clip(request.reason));
  return {ec::none, broker::label(member) + " is draining", member.id};
}

void BrokerCore::Impl::order_drain(const Member& member, std::int64_t deadline_ms,
                                   std::string reason) {
  DrainOrder order;
  order.incarnation = member.incarnation;
  order.deadline_ms = deadline_ms > 0 ? deadline_ms : config.times.drain_deadline.count();
  order.reason = std::move(reason);
  drains.push_back({member.id, std::move(order)});
}

CommandReply BrokerCore::Impl::leave(const LeaveRequest& request, Moment now) {
  if (outdated) {
    return {ec::closed, "cannot leave: this broker is outdated, tell the later one", request.node};
  }
  if (const auto* member = view.find(request.node, request.incarnation)) {
    const auto reason = clip(request.reason);
    end(*member, MemberState::left, reason, false, now);
    directory.member_ended(request.node, request.incarnation, true, now.steady);
    return {ec::none, "", request.node};
  }
  const auto* tombstone = tombstones.find(request.node, request.incarnation);
  if (tombstone != nullptr && tombstone->reason.starts_with(left_mark)) {
    return {ec::none, "has left already", request.node};
  }
  return {ec::session_lost, why_ended(request.node, request.incarnation), request.node};
}

/// `certain`: the process is known to be gone, so nothing of it can be running any more. `replaced`: its
/// node id is out for good.
void BrokerCore::Impl::down(const NodeId& id, std::string reason, bool certain, bool replaced,
                            Moment now) {
  const auto member = *view.find(id);
  fenced.push_back({id, member.incarnation, info.term, replaced, reason});
  end(member, MemberState::down, std::move(reason), replaced, now);
  directory.member_ended(id, member.incarnation, certain, now.steady);
}

void BrokerCore::Impl::end(Member member, MemberState state, std::string reason, bool replaced,
                           Moment now) {
  const auto id = member.id;
  member.state = state;
  member.reason = reason;
  member.since_ms = now.wall_ms;
  record(member);
  note(member, to_string(state), reason, now);
  if (state == MemberState::left) {
    reason.insert(0, left_mark);
  }
  tombstones.add({id, member.incarnation, replaced, now.wall_ms, std::move(reason)});

  if (const auto it = by_address.find(member.address); it != by_address.end() && it->second == id) {
    by_address.erase(it);
  }
  auto& kept = live.at(id);
  withdraw_statements_of(id, kept);
  forget_statements_about(id, kept);
  if (kept.due) {
    deadlines.erase({*kept.due, id});
  }
  suspects.erase(id);
  dirty.erase(id);
  awaited.erase(id);
  live.erase(id);
  if (live.size() == 3) {
    // From here on one observer is enough; at most three members to look at.
    dirty.insert(suspects.begin(), suspects.end());
  }
}

}  // namespace troupe
