// Why: work that computes must not run where bytes move or decisions are made. A compute slot is a
// thread for one task at a time; a node has as many as it was given cores. A task that hangs costs
// its slot and nothing else.
// Thread-safety: every member from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "net/error.hpp"
#include "net/executor.hpp"

namespace troupe {

struct ComputeCounters {
  std::size_t running = 0;   ///< tasks on a slot now
  std::size_t queued = 0;    ///< tasks that wait for a slot
  std::uint64_t done = 0;    ///< tasks that ended, also by an exception
  std::uint64_t failed = 0;  ///< … by an exception
};

class ComputePool {
 public:
  /// No thread is started before it is needed.
  ComputePool(std::size_t slots, std::size_t queue_limit);
  /// Does not wait for running tasks; see `stop`.
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  /// Runs `task` on a slot, in the order of submission. `ec::would_block` when the queue is full,
  /// `ec::closed` after `stop`, `ec::system_error` when no thread can be started.
  expected<void> submit(std::function<void()> task);

  /// Takes no more tasks, drops those that wait, and waits at most `deadline` for the running ones.
  /// False when one is still running: its thread is left behind, and touches nothing of the pool's
  /// owner but what the task itself holds. From inside a task it does not wait for that one.
  bool stop(net::Duration deadline);

  std::size_t slots() const noexcept { return slots_; }
  ComputeCounters counters() const;

 private:
  struct State;
  static expected<void> start_thread(const std::shared_ptr<State>& state);

  const std::size_t slots_;
  const std::size_t queue_limit_;
  std::shared_ptr<State> state_;
};

}  // namespace troupe
