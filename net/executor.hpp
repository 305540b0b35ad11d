// Why: link, heartbeat and failure-detector code must run unchanged on a real event loop and in a
// simulation under virtual time. An executor is that loop as they see it: a clock, a queue of
// functions, and timers, all served by one thread.
// Thread-safety: every member may be called from any thread; functions run one at a time on the
// executor's thread and never inside the call that hands them over.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace troupe::net {

using Duration = std::chrono::nanoseconds;

/// Time since an arbitrary start; never goes backwards.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

using TimerId = std::uint64_t;

class Executor {
 public:
  virtual ~Executor() = default;

  virtual TimePoint now() const noexcept = 0;

  /// Runs `fn` soon, in the order of posting. `fn` must not throw.
  virtual void post(std::function<void()> fn) = 0;

  /// Runs `fn` once, `delay` from now. Returns an id for `cancel`; never 0.
  virtual TimerId schedule(Duration delay, std::function<void()> fn) = 0;

  /// Forgets a timer. Called on the executor's thread it is exact: `fn` will not run afterwards.
  virtual void cancel(TimerId id) = 0;

  /// True on the thread (or in the simulated turn) that runs this executor's functions.
  virtual bool on_thread() const noexcept = 0;
};

}  // namespace troupe::net
