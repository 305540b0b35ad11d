// How members come: first joins, returns and syncs.
#include <algorithm>
#include <array>
#include <ctime>
#include <tuple>

#include "supervision/broker_core_impl.hpp"

namespace troupe {

namespace {

// A member's record travels to everybody, so nobody may make it large.
constexpr std::size_t max_text_bytes = 512;
constexpr std::size_t max_entries = 64;

/// A node that is refused may try again every second for days; its line in the history once is enough.
constexpr Milliseconds refusal_interval{60'000};
constexpr std::size_t max_refusals = 256;

std::string utc(std::int64_t ms) {
  const auto seconds = static_cast<std::time_t>(ms / 1000);
  std::tm parts{};
  std::array<char, 40> text{};
  if (::gmtime_r(&seconds, &parts) == nullptr ||
      std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) {
    return std::to_string(ms) + " ms since 1970";
  }
  return text.data();
}

template <class Map>
bool has_long_text(const Map& map) {
  return map.size() > max_entries || std::any_of(map.begin(), map.end(), [](const auto& entry) {
           if constexpr (requires { entry.second.size(); }) {
             if (entry.second.size() > max_text_bytes) {
               return true;
             }
           }
           return entry.first.size() > max_text_bytes;
         });
}

/// Empty when the record can be a member's.
std::string objection_to(const Member& member) {
  if (!member.id) {
    return "the join request has no node id";
  }
  if (member.address.empty()) {
    return "the join request has no address at which others could reach the node";
  }
  for (const auto* text : {&member.name, &member.address, &member.host, &member.build}) {
    if (text->size() > max_text_bytes) {
      return "name, address, host and build may have " + std::to_string(max_text_bytes) +
             " bytes each";
    }
    if (std::any_of(text->begin(), text->end(),
                    [](char c) { return static_cast<unsigned char>(c) < 0x20U || c == 0x7F; })) {
      return "name, address, host and build must not contain control characters";
    }
  }
  if (has_long_text(member.resources) || has_long_text(member.labels)) {
    return "a node may have " + std::to_string(max_entries) + " resources and labels of " +
           std::to_string(max_text_bytes) + " bytes each";
  }
  return {};
}

/// Takes over what the node says of itself; true when something of it is new.
bool describe(Member& member, const Member& said) {
  const auto own = [](const Member& m) {
    return std::tie(m.name, m.address, m.host, m.build, m.pid, m.resources, m.labels);
  };
  if (own(member) == own(said)) {
    return false;
  }
  member.name = said.name;
  member.address = said.address;
  member.host = said.host;
  member.build = said.build;
  member.pid = said.pid;
  member.resources = said.resources;
  member.labels = said.labels;
  return true;
}

JoinReply answer(ec code, std::string text) {
  JoinReply reply;
  reply.code = code;
  reply.text = std::move(text);
  return reply;
}

constexpr const char* outdated_text =
    "this broker is outdated: its cluster has had a later one; it is ending";

}  // namespace

JoinReply BrokerCore::Impl::join(const JoinRequest& request, Moment now) {
  if (request.cluster_id == info.cluster_id && request.term > info.term) {
    outdated = true;
  }
  if (outdated) {
    return answer(ec::closed, outdated_text);
  }
  if (request.cluster_id && request.cluster_id != info.cluster_id) {
    return refuse(request, "cluster",
                  "the node belongs to the cluster with id " + to_string(request.cluster_id) +
                      ", this one is " + to_string(info.cluster_id) +
                      "; start it anew to join another cluster",
                  now);
  }
  if (auto text = objection(request, now); !text.empty()) {
    return refuse(request, text.substr(0, 24), text, now);
  }
  return request.member.incarnation != 0 ? welcome_back(request, now) : admit(request, now);
}

/// What keeps both new and returning nodes out. Empty when nothing does.
std::string BrokerCore::Impl::objection(const JoinRequest& request, Moment now) const {
  if (auto text = objection_to(request.member); !text.empty()) {
    return text;
  }
  // Unsigned: the difference of two hostile numbers must not overflow.
  const auto theirs = static_cast<std::uint64_t>(request.clock_ms);
  const auto ours = static_cast<std::uint64_t>(now.wall_ms);
  const auto off = request.clock_ms > now.wall_ms ? theirs - ours : ours - theirs;
  if (off > static_cast<std::uint64_t>(config.times.max_clock_skew.count())) {
    return "clock: the node's says " + utc(request.clock_ms) + ", the broker's " +
           utc(now.wall_ms) + ", " + std::to_string(off) + " ms apart; at most " +
           std::to_string(config.times.max_clock_skew.count()) +
           " ms are allowed, set the node's clock (NTP)";
  }
  if (request.member.address == config.address && request.member.id != config.self) {
    // Only this process listens there. Believing it would end the broker's own membership.
    return "address: " + request.member.address +
           " is the broker's own; give the node an address of its own";
  }
  return {};
}

JoinReply BrokerCore::Impl::refuse(const JoinRequest& request, std::string_view kind,
                                   const std::string& text, Moment now) {
  Member member;
  member.id = request.member.id;
  member.name = request.member.name.substr(0, max_text_bytes);
  member.address = request.member.address.substr(0, max_text_bytes);
  const auto key = member.address + '\n' + std::string{kind};
  const auto known = refusals.find(key);
  if (known == refusals.end() || known->second <= now.steady) {
    if (refusals.size() >= max_refusals) {
      refusals.clear();
    }
    refusals[key] = broker::later(now.steady, refusal_interval);
    note(member, "refused", text, now);
  }
  return answer(ec::handshake_refused, "refused by the broker: " + text);
}

std::string BrokerCore::Impl::why_ended(const NodeId& node, std::uint64_t incarnation) const {
  const auto what = "incarnation " + std::to_string(incarnation) + " of " + short_string(node);
  if (const auto* tombstone = tombstones.find(node, incarnation)) {
    return what + " has ended: " + tombstone->reason;
  }
  return what + " is not known to the broker; join anew";
}

/// How many live members there would be with `joiner`, which takes the place of up to two.
std::size_t BrokerCore::Impl::live_after(const Member& joiner) const {
  std::size_t count = live.size() + 1;
  if (live.count(joiner.id) != 0) {
    --count;
  }
  const auto it = by_address.find(joiner.address);
  if (it != by_address.end() && it->second != joiner.id) {
    --count;
  }
  return count;
}

JoinReply BrokerCore::Impl::admit(const JoinRequest& request, Moment now) {
  const auto& joiner = request.member;
  if (const auto* tombstone = tombstones.replaced(joiner.id)) {
    return answer(ec::unauthorized, "another process took over from " + short_string(joiner.id) +
                                        ": " + tombstone->reason + "; start this node anew");
  }
  if (live_after(joiner) > config.max_members) {
    return refuse(request, "limit",
                  "the cluster has its limit of " + std::to_string(config.max_members) + " members",
                  now);
  }
  const auto* present = view.find(joiner.id);
  if (present != nullptr && present->state == MemberState::joining && present->pid == joiner.pid &&
      present->address == joiner.address) {
    // It asks again because the answer was late; nothing runs in the name of what never confirmed.
    JoinReply reply;
    reply.incarnation = present->incarnation;
    return reply;
  }
  if (live.count(joiner.id) != 0) {
    // Not certain that the old one has stopped: this may be a late copy of an earlier request.
    down(joiner.id, "joined anew", false, false, now);
  }
  clear_address(joiner, now);

  Member member;
  member.id = joiner.id;
  member.incarnation = next_incarnation++;
  member.head = joiner.id == config.self;
  member.state = MemberState::joining;
  member.since_ms = now.wall_ms;
  describe(member, joiner);
  record(member);
  note(member, "joining", "", now);

  by_address[member.address] = member.id;
  auto& kept = live[member.id];
  kept.returned = true;
  kept.joining_until = broker::later(now.steady, config.times.lease + config.times.down_after);
  schedule(member.id, kept, now.steady);

  JoinReply reply;
  reply.incarnation = member.incarnation;
  return reply;
}

JoinReply BrokerCore::Impl::welcome_back(const JoinRequest& request, Moment now) {
  const auto& said = request.member;
  const auto* present = view.find(said.id, said.incarnation);
  if (present == nullptr) {
    return answer(ec::session_lost, why_ended(said.id, said.incarnation));
  }
  clear_address(said, now);
  auto member = *view.find(said.id, said.incarnation);
  auto& kept = live.at(said.id);
  const bool new_term = !kept.returned;
  const bool was_suspect = kept.suspected.has_value();
  const auto old_address = member.address;

  bool changed = describe(member, said);
  forget_statements_about(said.id, kept);
  if (was_suspect) {
    kept.suspected.reset();
    suspects.erase(said.id);
    member.state = standing_state(member, kept);
    member.reason = "returned";
    member.since_ms = now.wall_ms;
    changed = true;
  }
  if (changed) {
    record(member);
  }
  if (member.address != old_address) {
    by_address.erase(old_address);
    by_address[member.address] = member.id;
    directory.member_moved(member.incarnation, member.address);
  }
  if (new_term || was_suspect) {
    note(member, "returned", new_term ? "after the start of a new broker" : "after a suspicion",
         now);
  }
  if (was_suspect) {
    reconsider_subjects(kept);
  }
  kept.returned = true;
  awaited.erase(said.id);
  if (new_term && member.draining) {
    // The broker that gave the order may have died before it was told.
    order_drain(member, 0, member.reason);
  }
  schedule(said.id, kept, now.steady);

  JoinReply reply;
  reply.incarnation = member.incarnation;
  return reply;
}

/// Only one process can listen at an address of a host, so a new one there proves that the old one is gone.
/// Another host may have taken over the address while the old one is merely cut off.
void BrokerCore::Impl::clear_address(const Member& joiner, Moment now) {
  const auto it = by_address.find(joiner.address);
  if (it != by_address.end() && it->second != joiner.id) {
    const auto other = it->second;
    const bool certain = !joiner.host.empty() && view.find(other)->host == joiner.host;
    down(other, "replaced by a new process at the same address, " + short_string(joiner.id),
         certain, true, now);
  }
}

SyncReply BrokerCore::Impl::sync(const SyncRequest& request, Moment now) {
  SyncReply reply;
  if (request.term > info.term) {
    outdated = true;
  }
  if (outdated) {
    reply.code = ec::closed;
    reply.text = outdated_text;
    return reply;
  }
  if (const auto* member = view.find(request.node, request.incarnation)) {
    mark_returned(*member, now);
    settle(now);
  }
  // Looked up again: what others say of the member may have ended it just now.
  if (view.find(request.node, request.incarnation) == nullptr) {
    reply.code = ec::session_lost;
    reply.text = why_ended(request.node, request.incarnation);
    return reply;
  }
  if (auto& kept = live.at(request.node); !kept.confirmed && request.term == info.term) {
    kept.confirmed = true;
    kept.joining_until.reset();
    schedule(request.node, kept, now.steady);
    if (auto next = *view.find(request.node); next.state == MemberState::joining) {
      next.state = standing_state(next, kept);
      next.since_ms = now.wall_ms;
      next.reason.clear();
      record(next);
      note(next, to_string(next.state), "", now);
    }
  }
  reply.delta = {info.term, view.epoch(), view.epoch(), {}};
  if (request.term != info.term || request.epoch > view.epoch() || !log.reaches(request.epoch)) {
    // Of another term: only a snapshot says who the broker is now.
    reply.snapshot.push_back(view.snapshot());
  } else if (request.epoch < view.epoch()) {
    reply.delta = {info.term, request.epoch, view.epoch(), log.since(request.epoch)};
  }
  return reply;
}

/// A member of an earlier term has been heard: what the broker itself held against it is void.
void BrokerCore::Impl::mark_returned(const Member& member, Moment now) {
  const auto id = member.id;
  auto& kept = live.at(id);
  if (kept.returned) {
    return;
  }
  kept.returned = true;
  awaited.erase(id);
  note(member, "returned", "after the start of a new broker", now);
  if (kept.said.erase(config.self) != 0) {
    if (const auto own = live.find(config.self); own != live.end()) {
      own->second.speaks_of.erase(id);
    }
    evaluate(id, now);
  }
}

}  // namespace troupe
