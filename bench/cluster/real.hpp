// Why: a cluster of `troupe node` processes on this machine, looked at as a user would.
// Thread-safety: none; the calling thread waits.
#pragma once

#include <cstddef>
#include <string>

#include "cluster/series.hpp"
#include "net/error.hpp"

namespace troupe::bench {

struct RealOptions {
  std::string profile = "lan";
  bool quick = false;
};

/// Starts a cluster of `series.nodes` processes, measures everything once and ends it.
expected<void> measure_real(const RealOptions& options, Series& series);

}  // namespace troupe::bench
