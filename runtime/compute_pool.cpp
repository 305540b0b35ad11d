#include "runtime/compute_pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "net/log_limit.hpp"

namespace troupe {

/// Shared with the threads, so that one that is left behind has something to come back to.
struct ComputePool::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  std::size_t threads = 0;
  std::size_t idle = 0;
  std::size_t running = 0;
  std::uint64_t done = 0;
  std::uint64_t failed = 0;
  bool stopped = false;

  void serve();
};

namespace {

thread_local const void* current_pool = nullptr;
/// The clock would overflow with much more.
constexpr std::chrono::hours longest_wait{24};
net::LogLimit failures;

/// Whether `task` ended without an exception. What it holds is destroyed here as well.
bool run(std::function<void()> task) {
  try {
    task();
    task = nullptr;
    return true;
  } catch (const std::exception& ex) {
    failures.warn("a task on a compute slot threw: {}", ex.what());
  } catch (...) {
    failures.warn("a task on a compute slot threw something that is no std::exception");
  }
  return false;
}

}  // namespace

void ComputePool::State::serve() {
  pthread_setname_np(pthread_self(), "troupe-comp");
  current_pool = this;
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return stopped || !queue.empty(); });
    if (stopped) {
      break;
    }
    auto task = std::move(queue.front());
    queue.pop_front();
    --idle;
    ++running;
    lock.unlock();
    const bool well = run(std::move(task));
    task = nullptr;
    lock.lock();
    ++idle;
    --running;
    ++done;
    failed += well ? 0U : 1U;
  }
  --idle;
  --threads;
  changed.notify_all();
}

/// Under the lock. Detached: whether all have ended is counted, and one that hangs is not waited for.
expected<void> ComputePool::start_thread(const std::shared_ptr<State>& state) {
  try {
    std::thread([state] { state->serve(); }).detach();
  } catch (const std::system_error& ex) {
    return fail(ec::system_error,
                std::string{"compute slots: cannot start a thread: "} + ex.what());
  }
  ++state->threads;
  ++state->idle;
  return {};
}

ComputePool::ComputePool(std::size_t slots, std::size_t queue_limit)
    : slots_(std::max<std::size_t>(slots, 1)),
      queue_limit_(queue_limit),
      state_(std::make_shared<State>()) {}

ComputePool::~ComputePool() { stop(net::Duration{0}); }

expected<void> ComputePool::submit(std::function<void()> task) {
  const std::lock_guard lock(state_->mutex);
  if (state_->stopped) {
    return fail(ec::closed, "compute slots: this node is shutting down and takes no more tasks");
  }
  // Each idle thread will take one of the tasks that are queued.
  const bool all_taken = state_->queue.size() >= state_->idle;
  if (all_taken && state_->threads < slots_) {
    if (auto started = start_thread(state_); !started && state_->threads == 0) {
      return started;
    }
  }
  if (state_->queue.size() >= state_->idle + queue_limit_) {
    return fail(ec::would_block, "compute slots: all " + std::to_string(slots_) + " are busy and " +
                                     std::to_string(queue_limit_) +
                                     " tasks wait; try again later or elsewhere");
  }
  state_->queue.push_back(std::move(task));
  state_->changed.notify_one();
  return {};
}

bool ComputePool::stop(net::Duration deadline) {
  std::deque<std::function<void()>> dropped;  // destroyed outside of the lock
  const auto state = state_;
  std::unique_lock lock(state->mutex);
  state->stopped = true;
  dropped.swap(state->queue);
  state->changed.notify_all();
  lock.unlock();
  dropped.clear();
  lock.lock();
  const std::size_t own = current_pool == state.get() ? 1 : 0;
  return state->changed.wait_for(lock, std::min<net::Duration>(deadline, longest_wait),
                                 [&] { return state->threads <= own; });
}

ComputeCounters ComputePool::counters() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->running, state_->queue.size(), state_->done, state_->failed};
}

}  // namespace troupe
