// Why: real and simulated clusters of several sizes are measured by different code and shown in one table.
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace troupe::bench {

/// All samples of clusters of one kind and size.
struct Series {
  std::string kind;  ///< "real" or "simulated"
  std::size_t nodes = 0;
  std::vector<std::pair<std::string, std::vector<double>>> samples;  ///< by name of the metric

  void add(const std::string& metric, double value);
  const std::vector<double>* find(const std::string& metric) const;
};

double median(std::vector<double> values);

struct RunInfo {
  std::size_t repetitions = 0;
  std::string profile;
  bool quick = false;
  std::string load_before;  ///< /proc/loadavg when the run began
};

/// The content of a file of one line.
std::string first_line(const std::string& path);

std::string to_table(const std::vector<Series>& all);
/// The goals of membership beside what was measured; empty when nothing of it was.
std::string to_goals(const std::vector<Series>& all);
/// The table for docs/benchmarks.md.
std::string to_markdown(const std::vector<Series>& all);
std::string to_json(const std::vector<Series>& all, const RunInfo& info);

}  // namespace troupe::bench
