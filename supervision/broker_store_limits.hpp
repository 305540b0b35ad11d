// Why: all stores keep the same history; not for other code.
// Thread-safety: constants.
#pragma once

#include <cstddef>

namespace troupe {

/// Events that a store keeps; the oldest make room.
inline constexpr std::size_t kept_events = 100'000;

}  // namespace troupe
