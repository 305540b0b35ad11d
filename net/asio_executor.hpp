// Why: the real event loop behind `Executor`: one Asio io_context served by one named thread. Links
// and heartbeats get one each, so that a busy link cannot delay a heartbeat.
// Thread-safety: every member may be called from any thread unless it says otherwise.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "net/error.hpp"
#include "net/executor.hpp"

namespace boost::asio {
class io_context;
}

namespace troupe::net {

class AsioExecutor final : public Executor, public std::enable_shared_from_this<AsioExecutor> {
 public:
  /// Something that keeps the loop busy (a connection, a listener) and must end before it can stop.
  class Resident {
   public:
    virtual ~Resident() = default;
    /// Called on the loop's thread: end now, do not wait for anybody.
    virtual void abort(const error& reason) = 0;
  };

  /// Starts a loop on a thread of its own; `thread_name` has at most 15 characters. The loop runs
  /// until `stop`: whoever creates it must call that.
  static std::shared_ptr<AsioExecutor> create(const std::string& thread_name);

  ~AsioExecutor() override;
  AsioExecutor(const AsioExecutor&) = delete;
  AsioExecutor& operator=(const AsioExecutor&) = delete;

  TimePoint now() const noexcept override { return std::chrono::steady_clock::now(); }
  void post(std::function<void()> fn) override;
  TimerId schedule(Duration delay, std::function<void()> fn) override;
  void cancel(TimerId id) override;
  bool on_thread() const noexcept override;

  /// Registers a resident by its address. False when the loop is stopping: then end at once.
  bool add_resident(Resident* key, std::weak_ptr<Resident> resident);
  void remove_resident(Resident* key);

  /// Aborts all residents, forgets all timers, runs what is left and ends the thread. When that
  /// takes longer than `deadline`, the loop is stopped by force; when even that does not end the
  /// thread (a function hangs), it is left behind and false is returned. Not from the loop's own
  /// thread.
  bool stop(Duration deadline);

  boost::asio::io_context& context() noexcept;

 private:
  struct Loop;

  AsioExecutor();
  void run();
  void wake_locked();
  void drain();
  void begin_stop();
  void arm();
  void fire();
  void finish();
  bool await_end(Duration deadline);

  std::unique_ptr<Loop> loop_;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable ended_changed_;
  std::vector<std::function<void()>> queue_;
  bool drain_posted_ = false;
  bool stopping_ = false;  // residents are refused, timers are forgotten
  bool ended_ = false;     // the thread no longer serves the queue
  TimerId next_timer_ = 1;
  std::map<std::pair<TimePoint, TimerId>, std::function<void()>> timers_;
  std::unordered_map<TimerId, TimePoint> timer_deadlines_;
  TimePoint armed_for_ = TimePoint::max();
  std::map<Resident*, std::weak_ptr<Resident>> residents_;
};

}  // namespace troupe::net
