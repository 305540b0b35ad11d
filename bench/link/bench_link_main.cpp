// bench_link: what Troupe's links cost, beside CAF's io module and raw Asio. docs/benchmarks.md
// explains the method.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include <CLI/CLI.hpp>
#include <malloc.h>
#include <unistd.h>

#include "link/child.hpp"
#include "link/measure.hpp"
#include "link/report.hpp"

namespace {

using troupe::bench::Options;

/// The run as a whole is bounded, whatever a library does at its end.
constexpr unsigned run_limit_seconds = 900;

void on_alarm(int) {
  constexpr char text[] = "bench_link: the run exceeded its limit of 900 s\n";
  [[maybe_unused]] const auto ignored = ::write(STDERR_FILENO, text, sizeof(text) - 1);
  ::_exit(3);
}

int fail_with(const std::string& text) {
  std::fprintf(stderr, "bench_link: %s\n", text.c_str());
  return 1;
}

int serve(const std::string& name) {
  const auto system = troupe::bench::make_system(name);
  if (!system) {
    return fail_with("the system \"" + name + "\" is not part of this build");
  }
  const auto port = system->start_server();
  if (!port) {
    return fail_with(name + ": " + port.error().text());
  }
  troupe::bench::announce_and_wait(*port);
  // Ends without destructors: a server actor that is still referenced would hold its system up.
  std::_Exit(0);
}

int run(const Options& options, const std::string& json_file) {
  const auto results = troupe::bench::measure(options);
  if (!results) {
    return fail_with(to_string(results.error()));
  }
  std::fputs(troupe::bench::to_table(*results).c_str(), stdout);
  if (!json_file.empty()) {
    std::ofstream file(json_file);
    file << troupe::bench::to_json(*results, options);
    if (!file.flush()) {
      return fail_with("cannot write \"" + json_file + "\"");
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.systems = troupe::bench::known_systems();
  std::string json_file;
  std::string served;

  CLI::App app{"Measures Troupe's links beside CAF's io module and raw Asio."};
  app.add_flag("--quick", options.quick, "a few messages per job, one repetition");
  app.add_option("--repetitions", options.repetitions, "how often everything is measured")
      ->check(CLI::Range(1, 1000));
  app.add_option("--seconds", options.target_seconds, "length of one measurement")
      ->check(CLI::Range(0.001, 10.0));
  app.add_option("--metrics", options.metrics, "only these, separated by commas (see the table)")
      ->delimiter(',');
  app.add_option("--systems", options.systems, "only these, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember(troupe::bench::known_systems()));
  app.add_option("--json", json_file, "also write the samples to this file");
  app.add_flag("--recycle-memory", options.recycle_memory,
               "let malloc keep large blocks, in all processes");
  app.add_option("--serve", served, "the server side of one system; used by the driver");
  CLI11_PARSE(app, argc, argv);

  if (options.quick) {
    options.repetitions = 1;
  }
  if (options.recycle_memory) {
    ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
    ::mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  }
  std::signal(SIGPIPE, SIG_IGN);
  if (!served.empty()) {
    return serve(served);
  }
  std::signal(SIGALRM, on_alarm);
  ::alarm(run_limit_seconds);
  return run(options, json_file);
}
