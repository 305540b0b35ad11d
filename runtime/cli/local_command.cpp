// `troupe local`: a cluster on this machine.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "runtime/cli/app.hpp"
#include "runtime/cli/config_flags.hpp"
#include "runtime/cli/local_cluster.hpp"
#include "runtime/node_config.hpp"

namespace troupe::cli {

namespace {

constexpr int wrong_arguments = 2;

struct Arguments {
  LocalOptions local;
  std::string cluster;
  std::string profile = "loopback";
};

/// Reads the nodes' options as the nodes will, so that a mistake is told once and before anything starts.
NodeSettings check_node_flags(const LocalOptions& options) {
  CLI::App parser{"", "troupe local"};
  const auto sources = std::make_shared<ConfigSources>();
  add_config_flags(parser, node_setting_table(), sources);
  std::vector<std::string> reversed{options.node_flags.rbegin(), options.node_flags.rend()};
  try {
    parser.parse(reversed);
  } catch (const CLI::ParseError& problem) {
    give_up({ec::invalid_argument,
             std::string{"options of the nodes: "} + problem.what() + "; see `troupe node --help`"},
            wrong_arguments);
  }
  for (const auto& flag : local_flags()) {
    if (sources->flags.count(flag) != 0) {
      give_up({ec::invalid_argument, flag + " is not for `troupe local`, which sets it itself"},
              wrong_arguments);
    }
  }
  if (sources->flags.count("--listen") != 0) {
    give_up({ec::invalid_argument, "give --listen, which is for the head, before the \"--\""},
            wrong_arguments);
  }
  sources->environment = process_environment();
  const auto& dropped = local_variables();
  sources->environment.erase(
      std::remove_if(sources->environment.begin(), sources->environment.end(),
                     [&](const auto& entry) {
                       return std::find(dropped.begin(), dropped.end(), entry.first) !=
                              dropped.end();
                     }),
      sources->environment.end());
  sources->flags["--head"] = {"true"};
  sources->flags["--listen"] = {options.listen};
  sources->flags["--name"] = {options.name_prefix + "0"};
  const auto loaded = load_node_config(*sources);
  if (!loaded) {
    give_up(loaded.error(), wrong_arguments);
  }
  return loaded->settings;
}

void run_local(Arguments arguments, const std::vector<std::string>& extras) {
  auto& options = arguments.local;
  options.node_flags = {"--profile", arguments.profile};
  if (!arguments.cluster.empty()) {
    options.node_flags.insert(options.node_flags.end(), {"--cluster-name", arguments.cluster});
  }
  for (const auto& word : extras) {
    if (word != "--") {
      options.node_flags.push_back(word);
    }
  }
  const NodeSettings settings = check_node_flags(options);
  options.api.tls = settings.tls;
  options.api.cluster = settings.cluster;
  // Leaving takes a moment beyond the work that may be finished.
  options.leave_within = settings.times.drain_deadline + std::chrono::seconds{5};
  if (const auto problem = run_local_cluster(options)) {
    give_up(problem);
  }
}

}  // namespace

void add_local_command(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand("local", "Run a cluster on this machine until Ctrl-C");
  command->add_option("N", arguments->local.count, "Node processes, the head among them")
      ->required()
      ->check(CLI::Range(1U, 1000U));
  command
      ->add_option("--name-prefix", arguments->local.name_prefix,
                   "Names of the nodes: this and a number")
      ->capture_default_str();
  command->add_option("--listen", arguments->local.listen, "host:port of the head")
      ->capture_default_str();
  command->add_option("--cluster-name", arguments->cluster, "Name of the cluster [troupe]");
  command->add_option("--profile", arguments->profile, "Times of the membership: lan or loopback")
      ->capture_default_str();
  command->add_option("--data", arguments->local.data,
                      "Folder for the nodes' data; without it a temporary one, removed at the end");
  command->allow_extras();
  command->footer("Further options of the nodes go after \"--\": see `troupe node --help`.");
  command->callback([arguments, command] { run_local(*arguments, command->remaining()); });
}

}  // namespace troupe::cli
