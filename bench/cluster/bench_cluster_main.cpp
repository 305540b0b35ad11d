// bench_cluster: how long a cluster takes to form and to notice a death, and what a change costs, as it grows.
// docs/benchmarks.md explains the method.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "cluster/real.hpp"
#include "cluster/series.hpp"
#include "cluster/simulated.hpp"

namespace {

using namespace troupe;
using namespace troupe::bench;

/// The run as a whole is bounded; its children die with it.
constexpr unsigned run_limit_seconds = 3'600;

void on_alarm(int) {
  constexpr char text[] = "bench_cluster: the run exceeded its limit of an hour\n";
  [[maybe_unused]] const auto ignored = ::write(STDERR_FILENO, text, sizeof(text) - 1);
  ::_exit(3);
}

struct Arguments {
  RunInfo run;
  std::vector<std::size_t> real{3, 16, 64};
  std::vector<std::size_t> simulated{256, 1024};
  std::string json;
  bool markdown = false;
};

int fail_with(const std::string& text) {
  std::fprintf(stderr, "bench_cluster: %s\n", text.c_str());
  return 1;
}

expected<std::vector<Series>> measure(const Arguments& arguments) {
  const auto& run = arguments.run;
  std::vector<Series> all;
  const auto repeat = [&](const char* kind, std::size_t nodes, auto&& once) -> expected<void> {
    Series series{kind, nodes, {}};
    for (std::size_t i = 0; i < run.repetitions; ++i) {
      std::fprintf(stderr, "%s, %zu nodes: %zu of %zu\n", kind, nodes, i + 1, run.repetitions);
      if (auto done = once(i, series); !done) {
        return done;
      }
    }
    all.push_back(std::move(series));
    return {};
  };
  for (const auto nodes : arguments.real) {
    const auto done =
        nodes == 0 ? expected<void>{} : repeat("real", nodes, [&](std::size_t, Series& s) {
          return measure_real({run.profile, run.quick}, s);
        });
    if (!done) {
      return fail(done.error());
    }
  }
  const auto times = run.profile == "loopback" ? MembershipTimes::loopback() : MembershipTimes{};
  for (const auto nodes : arguments.simulated) {
    const auto done =
        nodes == 0 ? expected<void>{} : repeat("simulated", nodes, [&](std::size_t i, Series& s) {
          return measure_simulated(i + 1, times, run.quick, s);
        });
    if (!done) {
      return fail(done.error());
    }
  }
  return all;
}

/// One is killed and one is stopped, and the head has to see it.
bool too_small(std::size_t nodes) { return nodes == 1 || nodes == 2; }

int run(const Arguments& arguments) {
  if (std::any_of(arguments.real.begin(), arguments.real.end(), too_small) ||
      std::any_of(arguments.simulated.begin(), arguments.simulated.end(), too_small)) {
    return fail_with("a cluster needs 3 nodes to be measured");
  }
  const auto results = measure(arguments);
  if (!results) {
    return fail_with(to_string(results.error()));
  }
  std::fputs(arguments.markdown ? to_markdown(*results).c_str() : to_table(*results).c_str(),
             stdout);
  std::printf("\n%s", to_goals(*results).c_str());
  if (!arguments.json.empty()) {
    std::ofstream file(arguments.json);
    file << to_json(*results, arguments.run);
    if (!file.flush()) {
      return fail_with("cannot write \"" + arguments.json + "\"");
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  arguments.run.repetitions = 3;
  arguments.run.profile = "lan";
  CLI::App app{
      "Measures how clusters form, change and notice deaths, with processes and simulated."};
  auto* real =
      app.add_option("--real", arguments.real, "sizes of clusters of processes, 3 or more; 0: none")
          ->delimiter(',')
          ->check(CLI::Range(0, 1000));
  auto* simulated = app.add_option("--simulated", arguments.simulated,
                                   "sizes of simulated ones, 3 or more; 0: none")
                        ->delimiter(',')
                        ->check(CLI::Range(0, 10'000));
  app.add_option("--repetitions", arguments.run.repetitions, "how often everything is measured")
      ->check(CLI::Range(1, 1000));
  auto* profile = app.add_option("--profile", arguments.run.profile, "times of the membership")
                      ->check(CLI::IsMember({"lan", "loopback"}));
  app.add_flag("--quick", arguments.run.quick, "small clusters, short times, one repetition");
  app.add_flag("--markdown", arguments.markdown, "print the table as Markdown");
  app.add_option("--json", arguments.json, "also write the samples to this file");
  CLI11_PARSE(app, argc, argv);

  if (arguments.run.quick) {
    arguments.run.repetitions = 1;
    arguments.real = real->count() > 0 ? arguments.real : std::vector<std::size_t>{4};
    arguments.simulated =
        simulated->count() > 0 ? arguments.simulated : std::vector<std::size_t>{16};
    arguments.run.profile = profile->count() > 0 ? arguments.run.profile : "loopback";
  }
  arguments.run.load_before = first_line("/proc/loadavg");
  // Faults are made on purpose here; the simulated nodes would log each.
  spdlog::set_level(spdlog::level::off);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGALRM, on_alarm);
  ::alarm(run_limit_seconds);
  try {
    return run(arguments);
  } catch (const std::exception& problem) {
    return fail_with(problem.what());
  }
}
