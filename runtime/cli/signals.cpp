#include "runtime/cli/signals.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>

namespace troupe::cli {

namespace {

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

BlockedSignals::BlockedSignals() {
  const auto set = ending_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

BlockedSignals::~BlockedSignals() {
  const auto set = ending_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

std::optional<int> BlockedSignals::wait(std::chrono::milliseconds time) {
  const auto set = ending_signals();
  const auto end = std::chrono::steady_clock::now() + time;
  for (;;) {
    const auto left = std::max(std::chrono::nanoseconds{0},
                               std::chrono::nanoseconds{end - std::chrono::steady_clock::now()});
    const timespec limit{static_cast<time_t>(left.count() / 1'000'000'000),
                         static_cast<long>(left.count() % 1'000'000'000)};
    const int signal = sigtimedwait(&set, nullptr, &limit);
    if (signal > 0) {
      return signal;
    }
    if (errno != EINTR) {
      return std::nullopt;
    }
  }
}

}  // namespace troupe::cli
