#include "link/measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>

#include "link/child.hpp"

namespace troupe::bench {

namespace {

constexpr std::size_t max_count = 2'000'000;

/// A system with its server process.
struct Contestant {
  std::string name;
  Child server;
  std::unique_ptr<System> system;
  /// counts[metric]: how many messages make up one measurement.
  std::map<std::string, std::size_t> counts;
};

expected<Contestant> start(const std::string& name, const Options& options) {
  std::vector<std::string> arguments{"--serve", name};
  if (options.recycle_memory) {
    arguments.emplace_back("--recycle-memory");
  }
  auto server = Child::start(arguments, std::chrono::seconds(20));
  if (!server) {
    return fail(server.error());
  }
  Contestant contestant{name, std::move(*server), make_system(name), {}};
  if (auto connected = contestant.system->connect(contestant.server.port()); !connected) {
    return fail(connected.error());
  }
  return contestant;
}

/// Sends `count` payloads, each acknowledged before the next.
expected<Timing> transfer(System& system, const Metric& metric, std::size_t count) {
  Timing sum;
  for (std::size_t i = 0; i < count; ++i) {
    const auto timing = system.bulk(metric.payload, metric.size, 1);
    if (!timing) {
      return fail(timing.error());
    }
    sum.seconds += timing->seconds;
  }
  return sum;
}

expected<Timing> perform(System& system, const Metric& metric, std::size_t count) {
  switch (metric.job) {
    case Job::round_trips:
      return system.round_trips(count);
    case Job::pipelined:
      return system.pipelined(count, metric.window);
    case Job::one_way:
      return system.one_way(count);
    case Job::bulk:
      if (metric.one_at_a_time) {
        return transfer(system, metric, count);
      }
      return system.bulk(metric.payload, metric.size, count);
  }
  return fail(ec::invalid_argument, "no such job");
}

std::size_t smallest_count(const Metric& metric) {
  if (metric.job == Job::bulk) {
    return std::max<std::size_t>(2, (std::size_t{1} << 20U) / metric.size);
  }
  return std::max<std::size_t>(200, 2 * metric.window);
}

/// Warms the path up with growing counts until one lasts long enough to tell the count that takes
/// the target time.
expected<std::size_t> calibrate(System& system, const Metric& metric, const Options& options) {
  if (options.quick) {
    return metric.job == Job::bulk ? std::size_t{2} : std::size_t{50};
  }
  for (std::size_t count = smallest_count(metric);; count *= 4) {
    count = std::min(count, max_count);
    const auto timing = perform(system, metric, count);
    if (!timing) {
      return fail(timing.error());
    }
    if (timing->seconds > options.target_seconds / 5 || count == max_count) {
      const double wanted = static_cast<double>(count) * options.target_seconds / timing->seconds;
      return static_cast<std::size_t>(std::clamp(
          wanted, static_cast<double>(smallest_count(metric)), static_cast<double>(max_count)));
    }
  }
}

void record(Samples& samples, const Metric& metric, const std::string& system, Timing timing,
            std::size_t count) {
  const auto n = static_cast<double>(count);
  switch (metric.job) {
    case Job::round_trips:
      samples["round_trip_p50"][system].push_back(quantile(timing.latencies_us, 0.5));
      samples["round_trip_p99"][system].push_back(quantile(std::move(timing.latencies_us), 0.99));
      break;
    case Job::pipelined:
    case Job::one_way:
      samples[metric.name][system].push_back(n / timing.seconds);
      break;
    case Job::bulk:
      samples[metric.name][system].push_back(n * static_cast<double>(metric.size) / 1e9 /
                                             timing.seconds);
      break;
  }
}

expected<void> measure_metric(std::vector<Contestant>& contestants, const Metric& metric,
                              std::size_t repetition, const Options& options, Samples& samples) {
  for (std::size_t i = 0; i < contestants.size(); ++i) {
    // Another system begins in each repetition.
    auto& contestant = contestants[(i + repetition) % contestants.size()];
    if (!contestant.system->carries(metric.payload)) {
      continue;
    }
    const auto explain = [&](const error& err) {
      return fail(err.code(), contestant.name + ", " + metric.name + ": " + err.text());
    };
    auto& count = contestant.counts[metric.name];
    if (count == 0) {
      const auto calibrated = calibrate(*contestant.system, metric, options);
      if (!calibrated) {
        return explain(calibrated.error());
      }
      count = *calibrated;
    }
    auto timing = perform(*contestant.system, metric, count);
    if (!timing) {
      return explain(timing.error());
    }
    record(samples, metric, contestant.name, std::move(*timing), count);
  }
  return {};
}

std::string size_text(std::size_t size) {
  if (size >= 1'000'000) {
    return std::to_string(size / 1'000'000) + "MB";
  }
  return size >= 1000 ? std::to_string(size / 1000) + "kB" : std::to_string(size) + "B";
}

void add_bulk(std::vector<Metric>& metrics, Payload payload, const std::string& prefix,
              std::initializer_list<std::size_t> sizes, bool quick) {
  for (const auto size : sizes) {
    if (!quick || size <= 1'000'000) {
      metrics.push_back({prefix + size_text(size), "GB/s", Job::bulk, 1, payload, size, false});
    }
  }
}

}  // namespace

std::vector<Metric> make_metrics(bool quick) {
  std::vector<Metric> metrics;
  metrics.push_back(
      {"round_trip_p50", "us", Job::round_trips, 1, Payload::bytes, small_body, true});
  metrics.push_back(
      {"round_trip_p99", "us", Job::round_trips, 1, Payload::bytes, small_body, true});
  for (const std::size_t window : {1, 32, 1000}) {
    metrics.push_back({"window_" + std::to_string(window), "requests/s", Job::pipelined, window,
                       Payload::bytes, small_body, false});
  }
  metrics.push_back({"one_way", "messages/s", Job::one_way, 1, Payload::bytes, small_body, false});
  add_bulk(metrics, Payload::bytes, "bytes_",
           {100, 1'000, 10'000, 100'000, 1'000'000, 16'000'000, 64'000'000}, quick);
  add_bulk(metrics, Payload::floats, "floats_", {100'000, 1'000'000, 64'000'000}, quick);
  const auto first_single = metrics.size();
  add_bulk(metrics, Payload::bytes, "single_", {1'000'000, 64'000'000}, quick);
  for (auto i = first_single; i < metrics.size(); ++i) {
    metrics[i].one_at_a_time = true;
  }
  return metrics;
}

expected<Results> measure(const Options& options) {
  Results results;
  results.metrics = make_metrics(options.quick);
  std::vector<Contestant> contestants;
  for (const auto& name : options.systems) {
    if (!make_system(name)) {
      results.not_built.push_back(name);
      continue;
    }
    auto contestant = start(name, options);
    if (!contestant) {
      return fail(contestant.error().code(), name + ": " + contestant.error().text());
    }
    contestants.push_back(std::move(*contestant));
  }
  for (int repetition = 0; repetition < options.repetitions && !contestants.empty(); ++repetition) {
    std::fprintf(stderr, "repetition %d of %d\n", repetition + 1, options.repetitions);
    for (const auto& metric : results.metrics) {
      const auto& only = options.metrics;
      if (metric.name == "round_trip_p99" ||
          (!only.empty() && std::find(only.begin(), only.end(), metric.name) == only.end())) {
        continue;
      }
      if (auto done = measure_metric(contestants, metric, static_cast<std::size_t>(repetition),
                                     options, results.samples);
          !done) {
        return fail(done.error());
      }
    }
  }
  return results;
}

double quantile(std::vector<double> values, double q) {
  const auto rank = static_cast<std::size_t>(std::min(
      std::floor(q * static_cast<double>(values.size())), static_cast<double>(values.size() - 1)));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rank),
                   values.end());
  return values[rank];
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace troupe::bench
