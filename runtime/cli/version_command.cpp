#include <iostream>

#include <CLI/CLI.hpp>

#include "runtime/cli/app.hpp"
#include "troupe_version.hpp"

namespace troupe::cli {

void add_version_command(CLI::App& app) {
  auto* command = app.add_subcommand("version", "Print the version and the build");
  command->callback([] { std::cout << "troupe " << build_string << '\n'; });
}

}  // namespace troupe::cli
