// Why: the `troupe` program, as a function, so that a user's own binary with its own roles can
// offer the same command line. Each command is one file with one `add_…_command` function.
// Thread-safety: call from the main thread.
#pragma once

#include "net/error.hpp"

namespace CLI {
class App;
}

namespace troupe::cli {

/// Parses the arguments and runs the command. Returns the exit code: 0, 1 when the command failed,
/// 2 when the arguments are wrong. A failure leaves one line on stderr.
int run(int argc, char** argv);

/// Ends the command that is running: `run` tells `reason` and returns `exit_code`.
[[noreturn]] void give_up(const error& reason, int exit_code = 1);

/// `troupe version`
void add_version_command(CLI::App& app);

/// `troupe node`
void add_node_command(CLI::App& app);

/// `troupe ping`
void add_ping_command(CLI::App& app);

/// `troupe status`
void add_status_command(CLI::App& app);

/// `troupe events`
void add_events_command(CLI::App& app);

/// `troupe drain`
void add_drain_command(CLI::App& app);

/// `troupe local`
void add_local_command(CLI::App& app);

/// `troupe certs init` and `troupe certs issue`
void add_certs_command(CLI::App& app);

}  // namespace troupe::cli
