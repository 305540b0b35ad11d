// Why: the flags of a command come out of the same table as its file keys and environment variables.
// Thread-safety: main thread.
#pragma once

#include <memory>
#include <vector>

#include "runtime/config.hpp"

namespace CLI {
class App;
}

namespace troupe::cli {

/// Adds the flags of `settings` and `--config` to a command. What is given on the command line lands in
/// `sources` when it is parsed.
void add_config_flags(CLI::App& command, const std::vector<Setting>& settings,
                      const std::shared_ptr<ConfigSources>& sources);

}  // namespace troupe::cli
