// Why: a fixed timeout is either too short for a busy network or too long for a dead node. The phi
// accrual detector (Hayashibara et al., "The phi accrual failure detector", SRDS 2004) learns how
// regularly heartbeats arrive and answers with a suspicion: phi = -log10 of the probability that a
// heartbeat is later than this, if the node is alive. Phi 1 is wrong once in 10, phi 8 once in
// 10^8. Thread-safety: none; the owner serialises.
#pragma once

#include <cstddef>
#include <vector>

#include "net/executor.hpp"

namespace troupe::net {

struct PhiConfig {
  /// Inter-arrival times that are remembered.
  std::size_t window = 100;
  /// Lower bound of the standard deviation: scheduling noise that must not raise suspicion.
  Duration min_deviation = std::chrono::milliseconds{50};
  /// Silence that is forgiven, added to the mean.
  Duration acceptable_pause{0};
  /// Stands for the mean until two heartbeats have arrived.
  Duration first_interval = std::chrono::milliseconds{250};
  /// Longer gaps are not learned (an outage is no property of the network); 0 = learn all.
  Duration longest_sample{0};
};

class PhiEstimator {
 public:
  explicit PhiEstimator(PhiConfig config = {});

  /// A heartbeat arrived. Times that go backwards count as "at once".
  void heartbeat(TimePoint now);

  /// Starts counting anew from `now`, e.g. on a fresh connection: the gap is not learned, what was
  /// learned stays.
  void restart(TimePoint now);

  /// Suspicion at `now`: 0 and more; 0 before the first heartbeat. Grows without bound, stays
  /// finite.
  double phi(TimePoint now) const;

  std::size_t samples() const noexcept { return intervals_.size(); }
  /// In nanoseconds.
  double mean() const;
  double deviation() const;

 private:
  PhiConfig config_;
  std::vector<double> intervals_;
  std::size_t next_ = 0;
  TimePoint last_{};
  bool heard_ = false;
};

/// -log10 of the probability that a normal variable exceeds its mean by `deviations`.
double phi_of(double deviations);

}  // namespace troupe::net
