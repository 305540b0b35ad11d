// Why: cluster tests run real processes. A child dies with the test, is found by the line it prints, and
// every wait for it is bounded.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace troupe::test {

class ChildProcess {
 public:
  /// Starts `command`; its standard output goes to a pipe, `with_stderr` its standard error too.
  explicit ChildProcess(const std::vector<std::string>& command, bool with_stderr = false);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }

  /// The next line it prints, or nothing at the end of its output or after `timeout`.
  std::optional<std::string> read_line(std::chrono::milliseconds timeout = std::chrono::seconds{
                                           20});

  /// Reads lines until one starts with `prefix`; the rest of that line.
  std::optional<std::string> read_until(const std::string& prefix,
                                        std::chrono::milliseconds timeout = std::chrono::seconds{
                                            20});

  /// All lines until the end of its output.
  std::string read_all(std::chrono::milliseconds timeout = std::chrono::seconds{20});

  void signal(int number) const;

  /// Its exit code (128 + signal when a signal ended it), or nothing after `timeout`.
  std::optional<int> wait(std::chrono::milliseconds timeout = std::chrono::seconds{20});

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  std::string buffer_;
  std::optional<int> status_;
};

/// Polls `condition` until it holds. False after `timeout`.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds timeout = std::chrono::seconds{20});

/// Resident memory of a process in bytes.
std::size_t resident_bytes(pid_t pid);

/// The seed of a fault test: TROUPE_SEED, or one from the clock; printed either way.
std::uint64_t test_seed(const char* test);

}  // namespace troupe::test
