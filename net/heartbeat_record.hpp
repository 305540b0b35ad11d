// Why: what is known about one peer's heartbeats, apart from connections and dials: times, round
// trips, phi.
// Thread-safety: none; net/heartbeat.cpp guards it.
#pragma once

#include "net/heartbeat.hpp"
#include "net/heartbeat_connection.hpp"

namespace troupe::net {

struct HeartbeatRecord {
  explicit HeartbeatRecord(const PhiConfig& config) : phi(config) {}

  /// `number`: how many pings the connection has brought by now, with this one.
  void note_ping(TimePoint now, std::uint64_t number);
  void note_answer(const HeartbeatHeard& heard);
  /// `stats` completed with what depends on the time of the call.
  HeartbeatStats summary(TimePoint now, Duration interval) const;
  /// Why the peer is to be suspected, or nothing. `quiet_since`: silence before does not count.
  std::string suspicion(TimePoint now, TimePoint quiet_since, const HeartbeatConfig& config) const;

  HeartbeatStats stats;
  PhiEstimator phi;

 private:
  std::vector<Duration> rtt_;
  std::size_t rtt_next_ = 0;
};

}  // namespace troupe::net
