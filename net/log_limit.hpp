// Why: what strangers and peers can provoke must not fill the log: at most ten lines a second, and a count of
// what was left out.
// Thread-safety: any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include <spdlog/spdlog.h>

namespace troupe::net {

class LogLimit {
 public:
  template <class... Args>
  void warn(spdlog::format_string_t<Args...> format, Args&&... args) {
    constexpr unsigned per_second = 10;
    const auto second = std::chrono::duration_cast<std::chrono::seconds>(
                            std::chrono::steady_clock::now().time_since_epoch())
                            .count();
    if (second_.exchange(second) != second) {
      logged_.store(0);
      if (const auto left_out = left_out_.exchange(0); left_out > 0) {
        spdlog::warn("{} more warnings of this kind were left out", left_out);
      }
    }
    if (logged_.fetch_add(1) < per_second) {
      spdlog::warn(format, std::forward<Args>(args)...);
    } else {
      left_out_.fetch_add(1);
    }
  }

 private:
  std::atomic<std::int64_t> second_{0};
  std::atomic<unsigned> logged_{0};
  std::atomic<std::uint64_t> left_out_{0};
};

}  // namespace troupe::net
