#include "cluster/series.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>
#include <sys/utsname.h>

namespace troupe::bench {

namespace {

struct Metric {
  const char* name;
  const char* unit;
};

constexpr std::array<Metric, 20> metrics{{
    {"form", "ms"},
    {"join", "ms"},
    {"leave", "ms"},
    {"kill_head", "ms"},
    {"kill_all", "ms"},
    {"stop_suspect", "ms"},
    {"stop_down", "ms"},
    {"join_messages", "messages"},
    {"leave_messages", "messages"},
    {"kill_messages", "messages"},
    {"join_bytes", "bytes"},
    {"leave_bytes", "bytes"},
    {"kill_bytes", "bytes"},
    {"idle_bytes", "bytes/s"},
    {"idle_cpu", "% of a core"},
    {"idle_cpu_head", "% of a core"},
    {"resident_most", "MB"},
    {"resident_mean", "MB"},
    {"ask_all", "ms"},
    {"wall", "s"},
}};

/// What issue 3 asks of real clusters.
struct Goal {
  const char* metric;
  std::size_t nodes;
  double below;
  const char* unit;
};

constexpr std::array<Goal, 7> goals{{{"form", 3, 1'000, "ms"},
                                     {"form", 64, 15'000, "ms"},
                                     {"idle_cpu", 64, 3, "% of a core"},
                                     {"resident_most", 64, 30, "MB"},
                                     {"kill_all", 3, 1'000, "ms"},
                                     {"kill_all", 16, 1'000, "ms"},
                                     {"kill_all", 64, 1'000, "ms"}}};

template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

std::string figure(double value) {
  if (value >= 1e6) {
    return format("%.2fM", value / 1e6);
  }
  if (value >= 1e5) {
    return format("%.0fk", value / 1e3);
  }
  return value >= 100 ? format("%.0f", value) : format("%.3g", value);
}

std::string cell(const std::vector<double>& values, bool with_range) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const auto text = figure(median(values));
  return with_range && values.size() > 1 ? text + " (" + figure(*low) + "-" + figure(*high) + ")"
                                         : text;
}

bool measured(const std::vector<Series>& all, const char* metric) {
  return std::any_of(all.begin(), all.end(),
                     [&](const Series& series) { return series.find(metric) != nullptr; });
}

std::optional<double> median_of(const std::vector<Series>& all, const Goal& goal) {
  for (const auto& series : all) {
    const auto* values = series.find(goal.metric);
    if (series.kind == "real" && series.nodes == goal.nodes && values != nullptr) {
      return median(*values);
    }
  }
  return std::nullopt;
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

}  // namespace

void Series::add(const std::string& metric, double value) {
  for (auto& [name, values] : samples) {
    if (name == metric) {
      values.push_back(value);
      return;
    }
  }
  samples.emplace_back(metric, std::vector<double>{value});
}

const std::vector<double>* Series::find(const std::string& metric) const {
  for (const auto& [name, values] : samples) {
    if (name == metric) {
      return &values;
    }
  }
  return nullptr;
}

double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string to_table(const std::vector<Series>& all) {
  std::string out = format("%-16s%-13s", "metric", "unit");
  for (const auto& series : all) {
    out += format("%26s", (series.kind + " " + std::to_string(series.nodes)).c_str());
  }
  out += "\n";
  for (const auto& metric : metrics) {
    if (!measured(all, metric.name)) {
      continue;
    }
    out += format("%-16s%-13s", metric.name, metric.unit);
    for (const auto& series : all) {
      const auto* values = series.find(metric.name);
      out += format("%26s", values != nullptr ? cell(*values, true).c_str() : "-");
    }
    out += "\n";
  }
  return out + "\nMedians over the repetitions (lowest-highest). Simulated times are virtual.\n";
}

std::string to_goals(const std::vector<Series>& all) {
  std::string out;
  for (const auto& goal : goals) {
    if (const auto value = median_of(all, goal)) {
      out += format("%-16s%4zu nodes  < %-8.6g%-13s%-10s%s\n", goal.metric, goal.nodes, goal.below,
                    goal.unit, figure(*value).c_str(), *value < goal.below ? "met" : "MISSED");
    }
  }
  return out;
}

std::string to_markdown(const std::vector<Series>& all) {
  std::string out = "| metric | unit |";
  std::string line = "| --- | --- |";
  for (const auto& series : all) {
    out += " " + series.kind + " " + std::to_string(series.nodes) + " |";
    line += " --- |";
  }
  out += "\n" + line + "\n";
  for (const auto& metric : metrics) {
    if (!measured(all, metric.name)) {
      continue;
    }
    out += std::string{"| `"} + metric.name + "` | " + metric.unit + " |";
    for (const auto& series : all) {
      const auto* values = series.find(metric.name);
      out += " " + (values != nullptr ? cell(*values, false) : "–") + " |";
    }
    out += "\n";
  }
  return out;
}

std::string to_json(const std::vector<Series>& all, const RunInfo& info) {
  utsname kernel{};
  ::uname(&kernel);
  nlohmann::ordered_json root;
  root["machine"] = {{"processor", processor_name()},
                     {"threads", std::thread::hardware_concurrency()},
                     {"kernel", std::string(kernel.release)},
                     {"load_average_before", info.load_before},
                     {"load_average_at_end", first_line("/proc/loadavg")}};
  root["options"] = {
      {"repetitions", info.repetitions}, {"profile", info.profile}, {"quick", info.quick}};
  root["clusters"] = nlohmann::ordered_json::array();
  for (const auto& series : all) {
    nlohmann::ordered_json entry{{"kind", series.kind}, {"nodes", series.nodes}};
    for (const auto& metric : metrics) {
      if (const auto* values = series.find(metric.name)) {
        entry["metrics"][metric.name] = {
            {"unit", metric.unit}, {"median", median(*values)}, {"samples", *values}};
      }
    }
    root["clusters"].push_back(std::move(entry));
  }
  root["goals"] = nlohmann::ordered_json::array();
  for (const auto& goal : goals) {
    if (const auto value = median_of(all, goal)) {
      root["goals"].push_back({{"metric", goal.metric},
                               {"nodes", goal.nodes},
                               {"below", goal.below},
                               {"unit", goal.unit},
                               {"median", *value},
                               {"met", *value < goal.below}});
    }
  }
  return root.dump(2) + "\n";
}

}  // namespace troupe::bench
