#include "runtime/cli/app.hpp"

#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "troupe_version.hpp"

namespace troupe::cli {

namespace {

constexpr int usage_error = 2;

/// Carries a failure from a command's callback to `run`; never leaves this file's functions.
struct CommandFailed {
  error reason;
  int exit_code;
};

void tell(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::cout.flush();
  std::cerr << "troupe: " << text << std::endl;
}

/// "troupe certs issue", the command as far as it was understood.
std::string command_of(const CLI::App& app) {
  const CLI::App* current = &app;
  std::string name = "troupe";
  for (auto chosen = current->get_subcommands(); !chosen.empty();
       chosen = current->get_subcommands()) {
    current = chosen.front();
    name += " " + current->get_name();
  }
  return name;
}

void add_commands(CLI::App& app) {
  add_node_command(app);
  add_local_command(app);
  add_status_command(app);
  add_events_command(app);
  add_drain_command(app);
  add_ping_command(app);
  add_version_command(app);
  add_certs_command(app);
}

}  // namespace

void give_up(const error& reason, int exit_code) { throw CommandFailed{reason, exit_code}; }

int run(int argc, char** argv) {
  // Standard output is for results.
  if (!spdlog::get("troupe")) {
    spdlog::set_default_logger(spdlog::stderr_color_mt("troupe"));
  }
  CLI::App app{
      "Troupe composes reinforcement learning and population-based training out of actors."};
  app.name("troupe");
  app.set_version_flag("--version", std::string{build_string});
  app.require_subcommand(1);
  try {
    add_commands(app);
    app.parse(argc, argv);
  } catch (const CommandFailed& failure) {
    tell(failure.reason.text());
    return failure.exit_code;
  } catch (const CLI::ParseError& problem) {
    if (problem.get_exit_code() == 0) {
      return app.exit(problem);  // --help and --version
    }
    tell(std::string{problem.what()} + "; see `" + command_of(app) + " --help`");
    return usage_error;
  } catch (const std::exception& problem) {
    tell(problem.what());
    return 1;
  }
  std::cout.flush();
  if (!std::cout) {
    tell("cannot write to the standard output");
    return 1;
  }
  return 0;
}

}  // namespace troupe::cli
