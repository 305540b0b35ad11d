// Why: turns systems into samples. The machine drifts, so all systems take turns within each metric
// of each repetition, and everything that is compared was measured within seconds of each other.
// Thread-safety: none; the driver's main thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "link/system.hpp"

namespace troupe::bench {

struct Options {
  std::vector<std::string> systems;
  std::vector<std::string> metrics;  ///< only these; empty: all
  int repetitions = 5;
  /// How long one measurement of one system should take.
  double target_seconds = 0.25;
  /// A few messages per job, to see that everything works.
  bool quick = false;
  /// Passed on to the server processes.
  bool recycle_memory = false;
};

enum class Job : std::uint8_t { round_trips, pipelined, one_way, bulk };

/// What is measured, in the order of the report.
struct Metric {
  std::string name;
  std::string unit;
  Job job = Job::round_trips;
  std::size_t window = 1;
  Payload payload = Payload::bytes;
  std::size_t size = small_body;
  bool less_is_better = false;
  /// Bulk: the next message is sent when the one before has arrived, so that nothing overlaps.
  bool one_at_a_time = false;
};

/// All metrics of a run. `round_trip_p99` comes out of the same job as `round_trip_p50`.
std::vector<Metric> make_metrics(bool quick);

/// samples[metric][system][repetition]
using Samples = std::map<std::string, std::map<std::string, std::vector<double>>>;

struct Results {
  std::vector<Metric> metrics;
  Samples samples;
  /// Systems that are not part of this build.
  std::vector<std::string> not_built;
};

/// Measures everything. Fails with the system's name when one of them fails.
expected<Results> measure(const Options& options);

double median(std::vector<double> values);

/// The value below which the share `q` (0 … 1) of `values` lies. `values` must not be empty.
double quantile(std::vector<double> values, double q);

}  // namespace troupe::bench
