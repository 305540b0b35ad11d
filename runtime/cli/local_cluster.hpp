// Why: whoever tries the framework or tests a topology on one machine wants a cluster with one command, and
// nothing left of it afterwards.
// Thread-safety: main thread.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "net/error.hpp"
#include "runtime/cli/api_client.hpp"

namespace troupe::cli {

struct LocalOptions {
  unsigned count = 1;  ///< processes, the head among them
  /// What is run as `program node …`.
  std::string program = "/proc/self/exe";
  std::string name_prefix = "node-";
  std::string listen = "127.0.0.1:0";   ///< of the head
  std::string data;                     ///< empty: a temporary folder
  std::vector<std::string> node_flags;  ///< for every node
  ApiArguments api;  ///< certificates to ask the head with; the address is found out
  std::chrono::milliseconds start_within = std::chrono::seconds{60};
  /// From SIGTERM to SIGKILL, for the workers and then for the head.
  std::chrono::milliseconds leave_within = std::chrono::seconds{35};
};

/// Flags of `troupe node` that are not the user's here, and the variables that would do the same.
const std::vector<std::string>& local_flags();
const std::vector<std::string>& local_variables();

/// Runs until SIGINT or SIGTERM, then ends the nodes: workers first. No error: all that were still running
/// left by themselves.
error run_local_cluster(const LocalOptions& options);

}  // namespace troupe::cli
