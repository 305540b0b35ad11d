#include <catch2/catch.hpp>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/compute_pool.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

/// Tasks wait in it until the test opens it.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++inside_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  bool wait_inside(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 20s, [&] { return inside_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int inside_ = 0;
  bool open_ = false;
};

bool wait_for(const std::function<bool()>& condition) {
  for (const auto end = std::chrono::steady_clock::now() + 20s; !condition();) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

/// Threads of this process with the pool's name.
int pool_threads() {
  int count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    std::string name;
    std::ifstream(entry.path() / "comm") >> name;
    count += name == "troupe-comp" ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST_CASE("compute pool: no thread before the first task, then as many as are needed") {
  Gate gate;
  ComputePool pool(3, 10);
  CHECK(pool_threads() == 0);
  for (int i = 1; i <= 3; ++i) {
    REQUIRE(pool.submit([&] { gate.pass(); }));
    REQUIRE(gate.wait_inside(i));
    CHECK(pool_threads() == i);
  }
  REQUIRE(pool.submit([] {}));
  CHECK(pool.counters().running == 3);
  CHECK(pool.counters().queued == 1);
  gate.open();
  CHECK(wait_for([&] { return pool.counters().done == 4; }));
  CHECK(pool_threads() == 3);
  CHECK(pool.stop(20s));
  CHECK(wait_for([] { return pool_threads() == 0; }));
}

TEST_CASE("compute pool: a full queue says so, and takes more when there is room") {
  Gate gate;
  ComputePool pool(2, 3);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(pool.submit([&] { gate.pass(); }));
  }
  REQUIRE(gate.wait_inside(2));
  for (int i = 0; i < 3; ++i) {
    REQUIRE(pool.submit([] {}));
  }
  const auto full = pool.submit([] {});
  REQUIRE_FALSE(full);
  CHECK(full.error().code() == ec::would_block);
  CHECK(full.error().text().find("all 2 are busy") != std::string::npos);
  CHECK(pool.counters().queued == 3);
  gate.open();
  CHECK(wait_for([&] { return pool.counters().done == 5; }));
  CHECK(pool.submit([] {}));

  ComputePool none(1, 0);
  Gate second;
  REQUIRE(none.submit([&] { second.pass(); }));
  REQUIRE(second.wait_inside(1));
  CHECK(none.submit([] {}).error().code() == ec::would_block);
  second.open();
  CHECK(none.stop(20s));
}

TEST_CASE("compute pool: one slot runs tasks in order, and exceptions stay inside") {
  ComputePool pool(1, 100);
  std::vector<int> order;
  const auto held = std::make_shared<int>(0);
  for (int i = 0; i < 50; ++i) {
    REQUIRE(pool.submit([&order, i, held] {
      order.push_back(i);
      if (i % 10 == 0) {
        throw std::runtime_error("task " + std::to_string(i));
      }
      if (i % 10 == 5) {
        throw i;
      }
    }));
  }
  REQUIRE(wait_for([&] { return pool.counters().done == 50; }));
  CHECK(pool.counters().failed == 10);
  CHECK(pool.counters().running == 0);
  CHECK(held.use_count() == 1);
  CHECK(pool.stop(20s));
  REQUIRE(order.size() == 50);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("compute pool: stop drops what waits, waits for what runs, and not for ever") {
  auto gate = std::make_shared<Gate>();
  const auto held = std::make_shared<int>(0);
  {
    ComputePool pool(1, 10);
    REQUIRE(pool.submit([gate] { gate->pass(); }));
    REQUIRE(gate->wait_inside(1));
    REQUIRE(pool.submit([held] { ++*held; }));
    CHECK_FALSE(pool.stop(1ms));
    CHECK(held.use_count() == 1);
    CHECK(pool.counters().queued == 0);
    CHECK(pool.submit([] {}).error().code() == ec::closed);
    CHECK_FALSE(pool.stop(1ms));
  }
  // The pool is gone, its thread is not.
  gate->open();
  CHECK(wait_for([] { return pool_threads() == 0; }));
  CHECK(*held == 0);
}

TEST_CASE("compute pool: a task may submit, and may stop the pool") {
  ComputePool pool(2, 10);
  bool all_ended = false;
  bool nested = false;
  bool submitted = false;
  Gate gate;
  gate.open();
  REQUIRE(pool.submit([&] {
    // No assertions here: Catch2 has one thread.
    submitted = pool.submit([&] {
                      nested = true;
                      gate.pass();
                    })
                    .has_value();
    gate.wait_inside(1);
    all_ended = pool.stop(20s);
    gate.pass();
  }));
  REQUIRE(gate.wait_inside(2));
  CHECK(pool.stop(20s));
  CHECK(submitted);
  CHECK(nested);
  CHECK(all_ended);
}

TEST_CASE("compute pool: many threads submit at once") {
  ComputePool pool(4, 100'000);
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        while (!pool.submit([&] { ++ran; })) {
          std::this_thread::yield();
        }
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK(wait_for([&] { return ran == 4000; }));
  CHECK(pool.stop(20s));
  CHECK(pool.counters().done == 4000);
}
