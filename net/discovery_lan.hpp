// Why: the sockets behind "lan" (net/discovery.hpp); used by the search only.
// Thread-safety: any thread; blocks for `wait`.
#pragma once

#include "net/discovery_parse.hpp"
#include "net/executor.hpp"

namespace troupe::net {

/// Asks the nodes of `cluster` on all networks of this host and collects answers for `wait`.
AddressList query_lan(const LanGroup& group, const std::string& cluster, Duration wait);

}  // namespace troupe::net
