// Why: what `troupe node` does once its settings are known is the node's business and not that of the
// command line's parsing.
// Thread-safety: main thread.
#pragma once

#include "runtime/node_settings.hpp"

namespace troupe::cli {

/// Runs a node until SIGTERM or SIGINT. A failure ends it with `give_up`.
void run_node(const NodeSettings& settings);

}  // namespace troupe::cli
