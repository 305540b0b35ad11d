// Why: counts what has been consumed of what a peer sent, from whatever thread a mailbox element dies
// on, and wakes the link when it is worth telling the peer. Internal to the link.
// Thread-safety: any thread, except as stated.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "net/link.hpp"

namespace troupe::net {

class Link::Credit final : public CreditAccount {
 public:
  explicit Credit(const std::array<std::size_t, lane_count>& windows) {
    for (std::size_t i = 0; i < lane_count; ++i) {
      windows_[i] = static_cast<std::int64_t>(windows[i]);
      advertised_[i] = windows_[i];
    }
  }

  void release(std::uint32_t lane, std::uint64_t bytes) noexcept override {
    const auto freed = static_cast<std::int64_t>(bytes);
    const auto consumed = consumed_[lane].fetch_add(freed, std::memory_order_relaxed) + freed;
    const auto known = advertised_[lane].load(std::memory_order_relaxed);
    if (consumed + windows_[lane] - known >= windows_[lane] / 4) {
      wake();
    }
  }

  /// Bytes held by a message whose fragments were released as they came: no new credit until it is
  /// consumed.
  void borrow(std::uint32_t lane, std::uint64_t bytes) noexcept {
    consumed_[lane].fetch_sub(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  }

  /// What to advertise now. Callers: writers, one at a time, and the executor's thread.
  std::uint64_t advertise(std::size_t lane) noexcept {
    const auto limit = consumed_[lane].load(std::memory_order_relaxed) + windows_[lane];
    auto known = advertised_[lane].load(std::memory_order_relaxed);
    while (limit > known && !advertised_[lane].compare_exchange_weak(known, limit)) {
    }
    return static_cast<std::uint64_t>(std::max(limit, known));
  }

  std::uint64_t advertised(std::size_t lane) const noexcept {
    return static_cast<std::uint64_t>(advertised_[lane].load());
  }

  void connect(std::weak_ptr<Link> link) {
    const std::lock_guard lock{mutex_};
    link_ = std::move(link);
  }

  /// The executor may be gone afterwards.
  void disconnect() {
    const std::lock_guard lock{mutex_};
    link_.reset();
  }

  void woken() noexcept { waking_.store(false); }

 private:
  void wake() noexcept {
    if (waking_.exchange(true)) {
      return;
    }
    try {
      const std::lock_guard lock{mutex_};
      if (auto link = link_.lock()) {
        link->executor_.post([weak = link_] {
          if (auto self = weak.lock()) {
            self->credit_wanted();
          }
        });
      }
    } catch (...) {  // out of memory: the next release tries again
      waking_.store(false);
    }
  }

  std::array<std::int64_t, lane_count> windows_{};
  std::array<std::atomic<std::int64_t>, lane_count> consumed_{};
  std::array<std::atomic<std::int64_t>, lane_count> advertised_{};
  std::atomic<bool> waking_{false};
  std::mutex mutex_;
  std::weak_ptr<Link> link_;
};

}  // namespace troupe::net
