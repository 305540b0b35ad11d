// Why: clusters that are larger than one machine can run as processes, in one process and under virtual time.
// Thread-safety: none.
#pragma once

#include <cstdint>

#include "cluster/series.hpp"
#include "net/error.hpp"
#include "supervision/membership.hpp"

namespace troupe::bench {

/// Makes a cluster of `series.nodes` nodes, measures everything once and throws it away.
expected<void> measure_simulated(std::uint64_t seed, const MembershipTimes& times, bool quick,
                                 Series& series);

}  // namespace troupe::bench
