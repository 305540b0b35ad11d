#include "net/phi.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace troupe::net {

double phi_of(double deviations) {
  const double x = deviations / std::numbers::sqrt2;
  if (x < 20.0) {
    return std::max(0.0, -std::log10(0.5 * std::erfc(x)));
  }
  // erfc underflows from 26 on; its asymptotic series has an error below 1e-5 here.
  const double log_erfc =
      -x * x - std::log(x * std::sqrt(std::numbers::pi)) + std::log1p(-1.0 / (2.0 * x * x));
  return -(log_erfc + std::log(0.5)) / std::numbers::ln10;
}

PhiEstimator::PhiEstimator(PhiConfig config) : config_(config) {
  config_.window = std::max<std::size_t>(config_.window, 1);
  config_.min_deviation = std::max(config_.min_deviation, Duration{1});
}

void PhiEstimator::heartbeat(TimePoint now) {
  if (!heard_) {
    restart(now);
    return;
  }
  const Duration gap = std::max(now - last_, Duration{0});
  last_ = std::max(last_, now);
  if (config_.longest_sample.count() > 0 && gap > config_.longest_sample) {
    return;
  }
  if (intervals_.size() < config_.window) {
    intervals_.push_back(static_cast<double>(gap.count()));
  } else {
    intervals_[next_] = static_cast<double>(gap.count());
    next_ = (next_ + 1) % config_.window;
  }
}

void PhiEstimator::restart(TimePoint now) {
  heard_ = true;
  last_ = now;
}

double PhiEstimator::mean() const {
  if (intervals_.empty()) {
    return static_cast<double>(config_.first_interval.count());
  }
  double sum = 0.0;
  for (const double interval : intervals_) {
    sum += interval;
  }
  return sum / static_cast<double>(intervals_.size());
}

double PhiEstimator::deviation() const {
  if (intervals_.empty()) {
    return static_cast<double>(config_.first_interval.count()) / 4.0;
  }
  const double centre = mean();
  double sum = 0.0;
  for (const double interval : intervals_) {
    sum += (interval - centre) * (interval - centre);
  }
  return std::sqrt(sum / static_cast<double>(intervals_.size()));
}

double PhiEstimator::phi(TimePoint now) const {
  if (!heard_) {
    return 0.0;
  }
  const double silence = static_cast<double>(std::max(now - last_, Duration{0}).count());
  const double spread = std::max(deviation(), static_cast<double>(config_.min_deviation.count()));
  const double expected = mean() + static_cast<double>(config_.acceptable_pause.count());
  return phi_of((silence - expected) / spread);
}

}  // namespace troupe::net
