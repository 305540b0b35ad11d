// Why: a process that runs others as its children owes them three things: they never outlive it, what they
// print is not lost, and how they ended is known.
// Thread-safety: one thread, which must live as long as the children: they die with it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "net/error.hpp"

namespace troupe::cli {

class ChildNodes {
 public:
  struct Child {
    std::string name;
    pid_t pid = -1;
    int output = -1;
    std::string partial;  ///< of a line
    bool running = true;
    int status = 0;  ///< as `waitpid` gives it

    bool clean() const;
    /// "ended with exit status 3", "was killed by signal 9 (Killed)".
    std::string end() const;
  };

  /// Takes SIGINT, SIGTERM and SIGCHLD of this process for itself.
  ChildNodes();
  /// Kills who still runs.
  ~ChildNodes();
  ChildNodes(const ChildNodes&) = delete;
  ChildNodes& operator=(const ChildNodes&) = delete;

  /// Runs `command`, without the environment variables `without`.
  expected<void> start(const std::string& name, const std::vector<std::string>& command,
                       const std::vector<std::string>& without);

  /// Forwards output, "[name] " before each line, to stderr, and notices ends and signals: until one of
  /// the latter or for at most `time`.
  void pump(std::chrono::milliseconds time);

  void signal(std::size_t index, int number);
  void signal_all(int number);

  const std::vector<Child>& all() const noexcept { return children_; }
  bool any_running() const;
  /// Children whose end `pump` has noticed and nobody has taken yet: indices.
  std::vector<std::size_t> take_ended();
  /// SIGINT and SIGTERM so far.
  unsigned signals() const noexcept { return signals_; }

 private:
  void read_signals();
  void read_output(Child& child);
  void reap();

  std::vector<Child> children_;
  std::vector<std::size_t> ended_;
  int signal_fd_ = -1;
  unsigned signals_ = 0;
};

}  // namespace troupe::cli
