#include "net/asio_executor.hpp"

#include <pthread.h>

#include <exception>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <spdlog/spdlog.h>

namespace troupe::net {

namespace asio = boost::asio;

struct AsioExecutor::Loop {
  asio::io_context context{1};
  asio::steady_timer timer{context};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
};

namespace {
thread_local const AsioExecutor* current_executor = nullptr;
}

AsioExecutor::AsioExecutor() : loop_(std::make_unique<Loop>()) {}

AsioExecutor::~AsioExecutor() {
  // The thread owns a reference while it runs, so that it has ended (or is ending) by now.
  if (thread_.joinable()) {
    thread_.detach();
  }
}

std::shared_ptr<AsioExecutor> AsioExecutor::create(const std::string& thread_name) {
  auto self = std::shared_ptr<AsioExecutor>(new AsioExecutor());
  self->thread_ = std::thread([self, thread_name] {
    pthread_setname_np(pthread_self(), thread_name.substr(0, 15).c_str());
    self->run();
  });
  return self;
}

asio::io_context& AsioExecutor::context() noexcept { return loop_->context; }

bool AsioExecutor::on_thread() const noexcept { return current_executor == this; }

void AsioExecutor::run() {
  current_executor = this;
  for (;;) {
    try {
      loop_->context.run();
      break;
    } catch (const std::exception& ex) {
      spdlog::critical("an event loop function threw: {} (this is a bug; the loop goes on)",
                       ex.what());
    }
  }
  finish();
  current_executor = nullptr;
}

/// What is still queued is destroyed here, on the loop's thread and outside of the lock, because
/// the destructors of captured objects may call back into this executor.
void AsioExecutor::finish() {
  std::vector<std::function<void()>> queue;
  std::map<std::pair<TimePoint, TimerId>, std::function<void()>> timers;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    ended_ = true;
    queue.swap(queue_);
    timers.swap(timers_);
    timer_deadlines_.clear();
    residents_.clear();
  }
  queue.clear();
  timers.clear();
  const std::lock_guard lock(mutex_);
  ended_changed_.notify_all();
}

// A queue of our own instead of asio::post for each function: Asio lets what the loop's own thread
// posts overtake or be overtaken by other threads' posts, and one wake-up serves many functions.
void AsioExecutor::post(std::function<void()> fn) {
  const std::lock_guard lock(mutex_);
  if (!ended_) {
    queue_.push_back(std::move(fn));
    fn = nullptr;
    wake_locked();
  }
}

void AsioExecutor::wake_locked() {
  if (!drain_posted_) {
    drain_posted_ = true;
    asio::post(loop_->context, [this] { drain(); });
  }
}

void AsioExecutor::drain() {
  std::vector<std::function<void()>> batch;
  {
    const std::lock_guard lock(mutex_);
    batch.swap(queue_);
    drain_posted_ = false;
  }
  for (auto& fn : batch) {
    try {
      fn();
    } catch (const std::exception& ex) {
      spdlog::critical("a posted function threw: {} (this is a bug; the loop goes on)", ex.what());
    }
    fn = nullptr;
  }
}

TimerId AsioExecutor::schedule(Duration delay, std::function<void()> fn) {
  const std::lock_guard lock(mutex_);
  const TimerId id = next_timer_++;
  if (stopping_) {
    return id;
  }
  const TimePoint when = now() + (delay > Duration::zero() ? delay : Duration::zero());
  timers_.emplace(std::make_pair(when, id), std::move(fn));
  fn = nullptr;
  timer_deadlines_.emplace(id, when);
  if (when < armed_for_) {
    armed_for_ = when;
    queue_.emplace_back([this] { arm(); });
    wake_locked();
  }
  return id;
}

void AsioExecutor::cancel(TimerId id) {
  std::function<void()> doomed;  // destroyed after the lock
  const std::lock_guard lock(mutex_);
  const auto found = timer_deadlines_.find(id);
  if (found == timer_deadlines_.end()) {
    return;
  }
  const auto entry = timers_.find({found->second, id});
  doomed.swap(entry->second);
  timers_.erase(entry);
  timer_deadlines_.erase(found);
}

void AsioExecutor::arm() {
  TimePoint when;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || timers_.empty()) {
      armed_for_ = TimePoint::max();
      return;
    }
    when = timers_.begin()->first.first;
    armed_for_ = when;
  }
  loop_->timer.expires_at(when);
  loop_->timer.async_wait([this](const boost::system::error_code& failure) {
    if (!failure) {
      fire();
    }
  });
}

void AsioExecutor::fire() {
  // Only what is due at this moment: functions that schedule with no delay cannot keep the loop
  // here.
  const TimePoint due = now();
  for (;;) {
    std::function<void()> fn;
    {
      const std::lock_guard lock(mutex_);
      if (timers_.empty() || timers_.begin()->first.first > due) {
        break;
      }
      fn = std::move(timers_.begin()->second);
      timer_deadlines_.erase(timers_.begin()->first.second);
      timers_.erase(timers_.begin());
    }
    fn();
  }
  arm();
}

bool AsioExecutor::add_resident(Resident* key, std::weak_ptr<Resident> resident) {
  const std::lock_guard lock(mutex_);
  if (stopping_) {
    return false;
  }
  residents_[key] = std::move(resident);
  return true;
}

void AsioExecutor::remove_resident(Resident* key) {
  const std::lock_guard lock(mutex_);
  residents_.erase(key);
}

void AsioExecutor::begin_stop() {
  std::map<Resident*, std::weak_ptr<Resident>> residents;
  std::map<std::pair<TimePoint, TimerId>, std::function<void()>> timers;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    residents.swap(residents_);
    timers.swap(timers_);
    timer_deadlines_.clear();
  }
  timers.clear();
  const error reason{ec::closed, "this node is shutting down"};
  for (auto& [key, weak] : residents) {
    if (auto resident = weak.lock()) {
      resident->abort(reason);
    }
  }
  loop_->timer.cancel();
  loop_->work.reset();
}

bool AsioExecutor::await_end(Duration deadline) {
  std::unique_lock lock(mutex_);
  return ended_changed_.wait_for(lock, deadline, [this] { return ended_; });
}

bool AsioExecutor::stop(Duration deadline) {
  const auto self = shared_from_this();
  post([this] { begin_stop(); });
  bool ended = await_end(deadline);
  if (!ended) {
    spdlog::warn("an event loop did not come to rest in time and is stopped by force");
    loop_->context.stop();
    ended = await_end(std::chrono::seconds{1});
  }
  if (!thread_.joinable()) {
    return ended;
  }
  if (ended) {
    thread_.join();
  } else {
    spdlog::critical("an event loop thread hangs in a function and is left behind");
    thread_.detach();
  }
  return ended;
}

}  // namespace troupe::net
