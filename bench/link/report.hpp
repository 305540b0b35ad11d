// Why: figures without a comparison say little on a machine that drifts. The report puts ratios
// beside the goals, each ratio taken within a repetition before the median.
// Thread-safety: functions on values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "link/measure.hpp"

namespace troupe::bench {

/// `system` divided by `reference`, at most or at least `bound`.
struct Goal {
  std::string system;
  std::string metric;
  std::string reference;
  bool at_most = false;
  double bound = 0;
};

const std::vector<Goal>& goals();

/// The median of the ratios per repetition; nothing when one side was not measured.
std::optional<double> ratio(const Results& results, const Goal& goal);

/// Two tables for people: figures (medians), and goals.
std::string to_table(const Results& results);

/// Everything, with the samples, the machine and the options.
std::string to_json(const Results& results, const Options& options);

}  // namespace troupe::bench
