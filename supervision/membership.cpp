#include "supervision/membership.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace troupe {

namespace {

constexpr std::array<std::string_view, 6> state_names{"joining", "up",       "suspect",
                                                      "down",    "draining", "left"};

/// Shorter starts of an id name too many nodes by accident.
constexpr std::size_t min_id_digits = 4;

bool is_healthy(const Member& member) noexcept {
  return member.state == MemberState::up || member.state == MemberState::draining ||
         member.state == MemberState::joining;
}

/// The head observes everybody anyway, so it is not one of the ring's observers.
bool is_head(const View& view, const Member& member) noexcept {
  return member.head || (view.broker().broker && member.id == view.broker().broker);
}

/// Bytes in front of which their number stands, so that no two different sequences of fields look alike.
class Hasher {
 public:
  Hasher() { XXH64_reset(&state_, 0); }

  void number(std::uint64_t value) { XXH64_update(&state_, &value, sizeof(value)); }
  void text(std::string_view value) {
    number(value.size());
    XXH64_update(&state_, value.data(), value.size());
  }
  void member(const Member& m);
  std::uint64_t digest() const { return XXH64_digest(&state_); }

 private:
  XXH64_state_t state_{};
};

void Hasher::member(const Member& m) {
  number(m.id.high());
  number(m.id.low());
  number(m.incarnation);
  for (const auto* field : {&m.name, &m.address, &m.host, &m.build, &m.reason}) {
    text(*field);
  }
  number(m.pid);
  number((m.head ? 1U : 0U) | (m.draining ? 2U : 0U));
  number(m.resources.size());
  for (const auto& [key, value] : m.resources) {
    text(key);
    number(std::bit_cast<std::uint64_t>(value));
  }
  number(m.labels.size());
  for (const auto& [key, value] : m.labels) {
    text(key);
    text(value);
  }
  number(static_cast<std::uint64_t>(m.state));
  number(static_cast<std::uint64_t>(m.since_ms));
  number(m.epoch);
}

bool by_epoch(const Member& a, const Member& b) noexcept { return a.epoch < b.epoch; }

}  // namespace

std::string_view to_string(MemberState state) noexcept {
  const auto index = static_cast<std::size_t>(state);
  return index < state_names.size() ? state_names[index] : std::string_view{"unknown"};
}

std::optional<MemberState> member_state_from_string(std::string_view name) noexcept {
  for (std::size_t i = 0; i < state_names.size(); ++i) {
    if (state_names[i] == name) {
      return static_cast<MemberState>(i);
    }
  }
  return std::nullopt;
}

View::View(ViewSnapshot snapshot) : broker_(std::move(snapshot.broker)), epoch_(snapshot.epoch) {
  // In the order of their changes, so that the oldest ended ones are forgotten first.
  std::stable_sort(snapshot.members.begin(), snapshot.members.end(), by_epoch);
  for (const auto& member : snapshot.members) {
    put(member);
  }
}

View::Applied View::apply(const ViewDelta& delta) {
  const auto known = broker_.term;
  if (known != 0 && delta.term != 0 && delta.term < known) {
    return Applied::old;
  }
  if (delta.epoch <= epoch_) {
    return Applied::old;
  }
  // Another term comes with another broker, which only a snapshot tells.
  if (delta.base > epoch_ || (known != 0 && delta.term > known)) {
    return Applied::gap;
  }
  std::vector<const Member*> changed;
  changed.reserve(delta.changed.size());
  for (const auto& member : delta.changed) {
    // The delta may begin before this view's epoch; what is known already may have been forgotten since.
    if (member.epoch > epoch_) {
      changed.push_back(&member);
    }
  }
  std::stable_sort(changed.begin(), changed.end(),
                   [](const Member* a, const Member* b) { return by_epoch(*a, *b); });
  for (const auto* member : changed) {
    put(*member);
  }
  epoch_ = delta.epoch;
  return Applied::yes;
}

void View::put(const Member& member) {
  const auto it = live_.find(member.id);
  if (is_live(member.state)) {
    if (it == live_.end()) {
      live_.emplace(member.id, member);
    } else if (it->second.incarnation <= member.incarnation) {
      it->second = member;
    }
    return;
  }
  if (it != live_.end() && it->second.incarnation <= member.incarnation) {
    live_.erase(it);
  }
  const auto same = std::find_if(ended_.begin(), ended_.end(), [&](const Member& other) {
    return other.id == member.id && other.incarnation == member.incarnation;
  });
  if (same != ended_.end()) {
    *same = member;
    return;
  }
  ended_.push_back(member);
  while (ended_.size() > kept_ended) {
    ended_.pop_front();
  }
}

const Member* View::find(const NodeId& id) const {
  const auto it = live_.find(id);
  return it == live_.end() ? nullptr : &it->second;
}

const Member* View::find(const NodeId& id, std::uint64_t incarnation) const {
  const auto* member = find(id);
  return member != nullptr && member->incarnation == incarnation ? member : nullptr;
}

std::vector<const Member*> View::match(std::string_view text) const {
  std::string digits{text};
  std::transform(digits.begin(), digits.end(), digits.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool may_be_id = digits.size() >= min_id_digits;
  std::vector<const Member*> found;
  for (const auto& [id, member] : live_) {
    if ((!text.empty() && (member.name == text || member.address == text)) ||
        (may_be_id && to_string(id).starts_with(digits))) {
      found.push_back(&member);
    }
  }
  return found;
}

ViewSnapshot View::snapshot() const {
  ViewSnapshot result{broker_, epoch_, {}};
  result.members.reserve(live_.size() + ended_.size());
  for (const auto& [id, member] : live_) {
    result.members.push_back(member);
  }
  result.members.insert(result.members.end(), ended_.begin(), ended_.end());
  return result;
}

std::uint64_t View::hash() const {
  Hasher hasher;
  hasher.number(epoch_);
  hasher.number(live_.size());
  for (const auto& [id, member] : live_) {
    hasher.member(member);
  }
  return hasher.digest();
}

std::vector<NodeId> observers_of(const View& view, const NodeId& subject, std::size_t count) {
  std::vector<NodeId> result;
  const auto& live = view.live();
  const auto start = live.find(subject);
  if (start == live.end()) {
    return result;
  }
  for (auto it = std::next(start); result.size() < count; ++it) {
    if (it == live.end()) {
      it = live.begin();
    }
    if (it == start) {
      break;
    }
    if (is_healthy(it->second) && !is_head(view, it->second)) {
      result.push_back(it->first);
    }
  }
  return result;
}

std::vector<NodeId> subjects_of(const View& view, const NodeId& self, std::size_t count) {
  std::vector<NodeId> result;
  const auto& live = view.live();
  const auto start = live.find(self);
  if (start == live.end() || !is_healthy(start->second) || is_head(view, start->second)) {
    return result;
  }
  // Backwards around the ring until `count` better placed observers lie in between.
  std::size_t between = 0;
  for (auto it = start; between < count;) {
    it = it == live.begin() ? std::prev(live.end()) : std::prev(it);
    if (it == start) {
      break;
    }
    result.push_back(it->first);
    if (is_healthy(it->second) && !is_head(view, it->second)) {
      ++between;
    }
  }
  std::sort(result.begin(), result.end());
  return result;
}

MembershipTimes MembershipTimes::loopback() {
  MembershipTimes times;
  times.heartbeat_interval = Milliseconds{100};
  // Generous beside the interval: tests run many processes on few cores.
  times.heartbeat_pause = Milliseconds{500};
  times.down_after = Milliseconds{1'500};
  times.lone_down_after = Milliseconds{6'000};
  times.lease = Milliseconds{2'000};
  times.head_grace = Milliseconds{6'000};
  times.sync_interval = Milliseconds{500};
  times.drain_deadline = Milliseconds{5'000};
  return times;
}

}  // namespace troupe
