#include "net/heartbeat_record.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace troupe::net {

namespace {
constexpr std::size_t round_trips = 128;

std::string number(const char* format, double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string silence_of(Duration duration) {
  return "nothing heard for " + number("%.1f s", std::chrono::duration<double>(duration).count());
}

}  // namespace

void HeartbeatRecord::note_ping(TimePoint now, std::uint64_t number) {
  if (number > 2) {
    phi.heartbeat(now);
  } else {
    // The gap between two connections says nothing about the rhythm of pings, nor does the one
    // between the opening and the peer's next tick.
    phi.restart(now);
  }
  ++stats.pings_received;
}

void HeartbeatRecord::note_answer(const HeartbeatHeard& heard) {
  stats.rtt_last = heard.round_trip;
  if (!stats.confirmed || heard.sent > *stats.confirmed) {
    stats.confirmed = heard.sent;
  }
  if (rtt_.size() < round_trips) {
    rtt_.push_back(heard.round_trip);
  } else {
    rtt_[rtt_next_] = heard.round_trip;
    rtt_next_ = (rtt_next_ + 1) % round_trips;
  }
}

std::string HeartbeatRecord::suspicion(TimePoint now, TimePoint quiet_since,
                                       const HeartbeatConfig& config) const {
  const Duration quiet = now - std::max(quiet_since, stats.last_heard.value_or(quiet_since));
  if (config.suspect_phi > 0.0 && stats.pings_received > 0) {
    const double suspected = phi.phi(now);
    return suspected > config.suspect_phi
               ? silence_of(now - stats.last_heard.value_or(now)) + number(", phi %.1f", suspected)
               : "";
  }
  return quiet >= config.silence ? silence_of(quiet) : "";
}

HeartbeatStats HeartbeatRecord::summary(TimePoint now, Duration interval) const {
  HeartbeatStats result = stats;
  result.phi = phi.phi(now);
  if (result.last_heard && now > *result.last_heard) {
    result.missed = static_cast<std::uint64_t>((now - *result.last_heard) / interval);
  }
  if (!rtt_.empty()) {
    std::vector<Duration> sorted = rtt_;
    std::sort(sorted.begin(), sorted.end());
    Duration sum{0};
    for (const Duration rtt : sorted) {
      sum += rtt;
    }
    result.rtt_mean = sum / static_cast<Duration::rep>(sorted.size());
    result.rtt_p99 = sorted[(sorted.size() * 99 - 1) / 100];
    result.rtt_max = sorted.back();
  }
  return result;
}

}  // namespace troupe::net
