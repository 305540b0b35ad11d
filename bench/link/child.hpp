// Why: the server side of a system is a process of its own. It is this executable again, started
// with --serve; it prints its port and lives until its standard input closes or the driver dies.
// Thread-safety: none; used by the driver's main thread (the parent-death signal follows it).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <sys/types.h>

#include "net/error.hpp"

namespace troupe::bench {

class Child {
 public:
  Child() = default;
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  /// Asks the process to end, gives it a second, then kills it.
  ~Child();

  /// Runs this executable with `arguments` and waits for a line "PORT <n>", at most `limit`.
  static expected<Child> start(const std::vector<std::string>& arguments,
                               std::chrono::milliseconds limit);

  std::uint16_t port() const noexcept { return port_; }

 private:
  expected<void> read_port(std::chrono::milliseconds limit);

  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  std::uint16_t port_ = 0;
};

/// The child's half: prints the port and returns when standard input has closed.
void announce_and_wait(std::uint16_t port);

}  // namespace troupe::bench
