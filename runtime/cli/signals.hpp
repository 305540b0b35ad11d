// Why: commands that run until Ctrl-C wait for time and signals together, and end as finished, not as killed.
// Thread-safety: main thread; construct before any other thread is started.
#pragma once

#include <chrono>
#include <optional>

namespace troupe::cli {

/// Blocks SIGINT and SIGTERM while it lives; they are then taken from `wait`.
class BlockedSignals {
 public:
  BlockedSignals();
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  /// The signal that came within `time`, or nothing.
  std::optional<int> wait(std::chrono::milliseconds time);
};

}  // namespace troupe::cli
