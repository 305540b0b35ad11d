#include "link/report.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <nlohmann/json.hpp>
#include <sys/utsname.h>

namespace troupe::bench {

namespace {

template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

std::vector<Goal> make_goals() {
  const std::string plain = "troupe_plain";
  const std::string tls = "troupe_tls";
  std::vector<Goal> all{
      {plain, "round_trip_p50", "caf_io", true, 0.45}, {plain, "window_32", "caf_io", false, 6},
      {plain, "window_1000", "caf_io", false, 6},      {plain, "one_way", "caf_io", false, 20},
      {plain, "bytes_64MB", "caf_io", false, 15},      {plain, "floats_64MB", "caf_io", false, 15},
  };
  for (const auto* metric : {"bytes_100kB", "bytes_1MB", "bytes_16MB", "bytes_64MB"}) {
    all.push_back({plain, metric, "asio_raw", false, 0.8});
  }
  all.push_back({tls, "round_trip_p50", plain, true, 1.25});
  for (const auto* metric : {"window_1", "window_32", "window_1000", "one_way"}) {
    all.push_back({tls, metric, plain, false, 0.8});
  }
  return all;
}

const std::vector<double>* find(const Results& results, const std::string& metric,
                                const std::string& system) {
  const auto by_metric = results.samples.find(metric);
  if (by_metric == results.samples.end()) {
    return nullptr;
  }
  const auto by_system = by_metric->second.find(system);
  return by_system == by_metric->second.end() ? nullptr : &by_system->second;
}

std::string figure(double value) {
  if (value >= 1e6) {
    return format("%.2fM", value / 1e6);
  }
  if (value >= 1e4) {
    return format("%.1fk", value / 1e3);
  }
  return value >= 100 ? format("%.0f", value) : format("%.3g", value);
}

/// Whether a ratio is on the right side of its bound.
bool met(const Goal& goal, double value) {
  return goal.at_most ? value <= goal.bound : value >= goal.bound;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) {
      return line.substr(std::min(line.size(), line.find(':') + 2));
    }
  }
  return "unknown";
}

nlohmann::ordered_json machine() {
  utsname kernel{};
  ::uname(&kernel);
  return {{"processor", processor_name()},
          {"threads", std::thread::hardware_concurrency()},
          {"kernel", std::string(kernel.release)},
          {"load_average_at_end", first_line("/proc/loadavg")}};
}

}  // namespace

const std::vector<Goal>& goals() {
  static const std::vector<Goal> all = make_goals();
  return all;
}

std::optional<double> ratio(const Results& results, const Goal& goal) {
  const auto* ours = find(results, goal.metric, goal.system);
  const auto* reference = find(results, goal.metric, goal.reference);
  if (ours == nullptr || reference == nullptr || ours->size() != reference->size()) {
    return std::nullopt;
  }
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours->size(); ++i) {
    ratios.push_back((*ours)[i] / (*reference)[i]);
  }
  return median(std::move(ratios));
}

std::string to_table(const Results& results) {
  std::string out = format("%-18s%-12s", "metric", "unit");
  for (const auto& system : known_systems()) {
    out += format("%25s", system.c_str());
  }
  out += "\n";
  for (const auto& metric : results.metrics) {
    out += format("%-18s%-12s", metric.name.c_str(), metric.unit.c_str());
    for (const auto& system : known_systems()) {
      const auto* values = find(results, metric.name, system);
      if (values == nullptr) {
        const bool built = std::find(results.not_built.begin(), results.not_built.end(), system) ==
                           results.not_built.end();
        out += format("%25s", built ? "-" : "not built");
        continue;
      }
      const auto [low, high] = std::minmax_element(values->begin(), values->end());
      const auto text = figure(median(*values)) + " (" + figure(*low) + "-" + figure(*high) + ")";
      out += format("%25s", text.c_str());
    }
    out += "\n";
  }
  out +=
      "\nMedians over the repetitions (lowest-highest). Ratios: medians of the ratios within a "
      "repetition.\n\n";
  out +=
      format("%-18s%-14s%-14s%-12s%-10s%s\n", "metric", "system", "against", "goal", "ratio", "");
  for (const auto& goal : goals()) {
    const auto value = ratio(results, goal);
    out += format("%-18s%-14s%-14s%s %-9.3g%-10s%s\n", goal.metric.c_str(), goal.system.c_str(),
                  goal.reference.c_str(), goal.at_most ? "<=" : ">=", goal.bound,
                  value ? figure(*value).c_str() : "-",
                  !value ? "not measured" : (met(goal, *value) ? "met" : "MISSED"));
  }
  out += "\nFor orientation, asio_raw against caf_io:";
  for (const auto& metric : results.metrics) {
    if (const auto value = ratio(results, {"asio_raw", metric.name, "caf_io", false, 0})) {
      out += " " + metric.name + " " + figure(*value) + "x";
    }
  }
  return out + "\n";
}

std::string to_json(const Results& results, const Options& options) {
  nlohmann::ordered_json root;
  root["machine"] = machine();
  root["options"] = {{"systems", options.systems},
                     {"repetitions", options.repetitions},
                     {"target_seconds", options.target_seconds},
                     {"quick", options.quick},
                     {"recycle_memory", options.recycle_memory}};
  root["not_built"] = results.not_built;
  for (const auto& metric : results.metrics) {
    nlohmann::ordered_json entry{
        {"metric", metric.name}, {"unit", metric.unit}, {"less_is_better", metric.less_is_better}};
    for (const auto& system : known_systems()) {
      if (const auto* values = find(results, metric.name, system)) {
        entry["systems"][system] = {{"median", median(*values)}, {"samples", *values}};
      }
    }
    root["metrics"].push_back(std::move(entry));
  }
  for (const auto& goal : goals()) {
    nlohmann::ordered_json entry{{"metric", goal.metric},
                                 {"system", goal.system},
                                 {"against", goal.reference},
                                 {goal.at_most ? "at_most" : "at_least", goal.bound}};
    const auto value = ratio(results, goal);
    entry["ratio"] = value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
    entry["met"] = value ? nlohmann::ordered_json(met(goal, *value)) : nlohmann::ordered_json();
    root["goals"].push_back(std::move(entry));
  }
  return root.dump(2) + "\n";
}

}  // namespace troupe::bench
