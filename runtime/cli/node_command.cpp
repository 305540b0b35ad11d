// `troupe node`: reads the settings of a node and runs it.
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <spdlog/spdlog.h>

#include "runtime/cli/app.hpp"
#include "runtime/cli/config_flags.hpp"
#include "runtime/cli/run_node.hpp"
#include "runtime/node_config.hpp"

namespace troupe::cli {

void add_node_command(CLI::App& app) {
  const auto sources = std::make_shared<ConfigSources>();
  const auto print = std::make_shared<bool>(false);
  auto* command =
      app.add_subcommand("node", "Run one process of a cluster until SIGTERM or SIGINT");
  command->add_flag("--print-config", *print,
                    "Print the settings as TOML, with where each comes from, and end");
  add_config_flags(*command, node_setting_table(), sources);
  command->footer("Flags win over the environment, the environment over the file.");
  command->callback([sources, print] {
    sources->environment = process_environment();
    const auto loaded = load_node_config(*sources);
    if (!loaded) {
      constexpr int wrong_arguments = 2;
      give_up(loaded.error(), wrong_arguments);
    }
    if (*print) {
      std::cout << loaded->config.print();
      return;
    }
    spdlog::set_level(spdlog::level::from_str(loaded->settings.log_level));
    run_node(loaded->settings);
  });
}

}  // namespace troupe::cli
