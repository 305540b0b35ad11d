// What observers say, and what follows from it.
#include <algorithm>

#include "supervision/broker_core_impl.hpp"

namespace troupe {

using broker::Live;
using broker::Statement;
using broker::Tally;

namespace {

constexpr std::size_t max_reason_bytes = 256;

/// More observers than that speak of one member only when the ring changes quickly; the oldest statements
/// make room.
constexpr std::size_t max_statements = 64;

/// Syncs after which a statement has faded that was not repeated by one who need not observe any more.
constexpr int fade_syncs = 3;

constexpr const char* not_back = "did not come back after the broker's restart";

std::string_view word(Observed state) {
  return state == Observed::alive ? "alive" : state == Observed::suspect ? "not heard" : "gone";
}

Milliseconds fade(const MembershipTimes& times) { return times.sync_interval * fade_syncs; }

}  // namespace

void BrokerCore::Impl::observe(const Observation& observation, Moment now) {
  const auto& observer = observation.observer;
  const auto& subject = observation.subject;
  // Of the broker's own node nobody knows better than the broker, which runs in it: declaring it down
  // would only make it join anew.
  if (outdated || observer == subject || subject == config.self ||
      observation.state > Observed::gone ||
      view.find(observer, observation.observer_incarnation) == nullptr ||
      view.find(subject, observation.subject_incarnation) == nullptr) {
    return;
  }
  say(observer, subject,
      {observation.state, observation.reason.substr(0, max_reason_bytes), now.steady});
  evaluate(subject, now);
}

void BrokerCore::Impl::say(const NodeId& observer, const NodeId& subject, Statement statement) {
  auto& said = live.at(subject).said;
  said[observer] = std::move(statement);
  if (const auto it = live.find(observer); it != live.end()) {
    it->second.speaks_of.insert(subject);
  }
  if (said.size() > max_statements) {
    auto oldest = said.end();
    for (auto it = said.begin(); it != said.end(); ++it) {
      if (it->first != config.self &&
          (oldest == said.end() || it->second.said < oldest->second.said)) {
        oldest = it;
      }
    }
    if (const auto it = live.find(oldest->first); it != live.end()) {
      it->second.speaks_of.erase(subject);
    }
    said.erase(oldest);
  }
}

void BrokerCore::Impl::forget_statements_about(const NodeId& id, Live& kept) {
  for (const auto& [observer, statement] : kept.said) {
    if (const auto it = live.find(observer); it != live.end()) {
      it->second.speaks_of.erase(id);
    }
  }
  kept.said.clear();
}

void BrokerCore::Impl::withdraw_statements_of(const NodeId& id, Live& kept) {
  for (const auto& subject : kept.speaks_of) {
    live.at(subject).said.erase(id);
  }
  reconsider_subjects(kept);
  kept.speaks_of.clear();
}

/// Only suspects: looking at those can clear or end them but never make new ones, so it comes to an end
/// however members accuse each other.
void BrokerCore::Impl::reconsider_subjects(const Live& observer) {
  for (const auto& subject : observer.speaks_of) {
    if (suspects.count(subject) != 0) {
      dirty.insert(subject);
    }
  }
}

/// An observer that has to observe now is believed until it says something else; one that need not any more
/// (the ring has changed) may never say that it stopped, so its word fades.
bool BrokerCore::Impl::stands(const NodeId& observer, const NodeId& subject,
                              const Statement& statement, net::TimePoint now) const {
  if (now - statement.said <= fade(config.times)) {
    return true;
  }
  const auto ring = observers_of(view, subject, config.times.observers);
  return std::find(ring.begin(), ring.end(), observer) != ring.end();
}

Tally BrokerCore::Impl::tally(const NodeId& subject, const Live& kept, net::TimePoint now) const {
  Tally result;
  for (const auto& [observer, statement] : kept.said) {
    const bool own = observer == config.self;
    const bool bad = statement.state != Observed::alive;
    const auto* member = view.find(observer);
    if (!own) {
      if (member == nullptr || !stands(observer, subject, statement, now)) {
        continue;
      }
      // One that is suspect may itself be the one that is cut off.
      if (member->state == MemberState::suspect) {
        result.uncounted_bad |= bad;
        continue;
      }
    }
    if (!bad) {
      ++result.vouch;
      continue;
    }
    ++result.bad;
    if (statement.state == Observed::gone) {
      ++result.gone;
    }
    if (result.who.size() >= max_reason_bytes) {
      continue;
    }
    result.who += (result.who.empty() ? "" : "; ") +
                  (member != nullptr ? broker::label(*member) : std::string{"the broker"}) +
                  " says " + std::string{word(statement.state)};
    if (!statement.reason.empty()) {
      result.who += ": " + statement.reason;
    }
  }
  return result;
}

void BrokerCore::Impl::evaluate(const NodeId& id, Moment now) {
  auto& kept = live.at(id);
  const auto& times = config.times;
  const auto counted = tally(id, kept, now.steady);
  if (id == config.self) {
    // Never down: see observe. It may be suspect out of a stored state.
    if (kept.suspected && counted.bad == 0) {
      unsuspect(id, kept, now);
    }
    return;
  }
  if (counted.gone >= enough()) {
    // Down, but not certainly dead: a firewall that resets connections looks the same.
    down(id, counted.who, false, false, now);
    return;
  }
  if (!kept.suspected && counted.bad > 0) {
    suspect(id, kept, counted.who, now);
  } else if (kept.suspected && counted.bad == 0 && (!counted.uncounted_bad || counted.vouch > 0)) {
    unsuspect(id, kept, now);
  }
  if (kept.suspected) {
    const bool confirmed = counted.bad >= enough();
    if (confirmed && now.steady >= broker::later(*kept.suspected, times.down_after)) {
      down(id, counted.who, false, false, now);
      return;
    }
    if (counted.vouch == 0 && now.steady >= broker::later(*kept.suspected, times.lone_down_after)) {
      down(id, (counted.who.empty() ? "suspected" : counted.who) + "; nobody vouches for it", false,
           false, now);
      return;
    }
  }
  if (kept.joining_until && now.steady >= *kept.joining_until) {
    down(id, "joined but never confirmed that it holds the view", false, false, now);
    return;
  }
  schedule(id, kept, now.steady);
}

MemberState BrokerCore::Impl::standing_state(const Member& member, const Live& record_of) const {
  if (!record_of.confirmed) {
    return MemberState::joining;
  }
  return member.draining ? MemberState::draining : MemberState::up;
}

void BrokerCore::Impl::suspect(const NodeId& id, Live& kept, const std::string& reason,
                               Moment now) {
  auto member = *view.find(id);
  kept.suspected = now.steady;
  suspects.insert(id);
  member.state = MemberState::suspect;
  member.reason = reason;
  member.since_ms = now.wall_ms;
  record(member);
  note(member, "suspect", reason, now);
  reconsider_subjects(kept);
}

void BrokerCore::Impl::unsuspect(const NodeId& id, Live& kept, Moment now) {
  auto member = *view.find(id);
  kept.suspected.reset();
  suspects.erase(id);
  member.state = standing_state(member, kept);
  member.reason = "heard again";
  member.since_ms = now.wall_ms;
  record(member);
  note(member, to_string(member.state), member.reason, now);
  reconsider_subjects(kept);
}

/// Puts the member's next deadline into the index: all in the future, since what is due has been done.
void BrokerCore::Impl::schedule(const NodeId& id, Live& kept, net::TimePoint now) {
  std::optional<net::TimePoint> due;
  const auto consider = [&](net::TimePoint at) {
    if (at > now && (!due || at < *due)) {
      due = at;
    }
  };
  // Nothing ever becomes due for the broker's own node.
  if (kept.suspected && id != config.self) {
    consider(broker::later(*kept.suspected, config.times.down_after));
    consider(broker::later(*kept.suspected, config.times.lone_down_after));
    // Statements fade by themselves.
    consider(broker::later(now, std::max(fade(config.times), Milliseconds{1}) + Milliseconds{1}));
  }
  if (kept.joining_until && id != config.self) {
    consider(*kept.joining_until);
  }
  if (kept.due == due) {
    return;
  }
  if (kept.due) {
    deadlines.erase({*kept.due, id});
  }
  if (due) {
    deadlines.emplace(*due, id);
  }
  kept.due = due;
}

void BrokerCore::Impl::settle(Moment now) {
  while (!dirty.empty()) {
    const auto id = *dirty.begin();
    dirty.erase(dirty.begin());
    if (suspects.count(id) != 0) {
      evaluate(id, now);
    }
  }
}

void BrokerCore::Impl::tick(Moment now) {
  // An outdated broker decides nothing any more.
  if (outdated) {
    return;
  }
  directory.tick(now.steady);
  if (grace_until && now.steady >= *grace_until) {
    end_grace(now);
  }
  while (!deadlines.empty() && deadlines.begin()->first <= now.steady) {
    const auto id = deadlines.begin()->second;
    deadlines.erase(deadlines.begin());
    live.at(id).due.reset();
    evaluate(id, now);
  }
  settle(now);
  // A lease of no length ends at once.
  directory.tick(now.steady);
}

void BrokerCore::Impl::end_grace(Moment now) {
  grace_until.reset();
  const auto missing = std::exchange(awaited, {});
  for (const auto& id : missing) {
    if (live.count(id) != 0) {
      say(config.self, id, {Observed::suspect, not_back, now.steady});
      evaluate(id, now);
    }
  }
}

std::optional<net::TimePoint> BrokerCore::Impl::next_deadline() const {
  if (outdated) {
    return std::nullopt;
  }
  auto result = directory.next_deadline();
  const auto consider = [&](std::optional<net::TimePoint> at) {
    if (at && (!result || *at < *result)) {
      result = at;
    }
  };
  consider(grace_until);
  consider(deadlines.empty() ? std::nullopt : std::optional{deadlines.begin()->first});
  return result;
}

}  // namespace troupe
