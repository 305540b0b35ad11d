// Why: tests of whole clusters start real `troupe node` processes (or `test_member`, which hosts and calls actors
// beside that), look at them through HTTP as a user would, and kill, stop and restart them.
// Thread-safety: one thread; the free functions any.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/tls.hpp"

namespace troupe::test {

using Clock = std::chrono::steady_clock;

/// Goes with all that is in it.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// A program whose standard output and standard error go to files, so that it never waits for its reader.
class LoggedProcess {
 public:
  /// `environment`: "NAME=value", beside the test's own, from which every TROUPE_* is taken out.
  LoggedProcess(std::string files, std::vector<std::string> command,
                std::vector<std::string> environment = {});
  ~LoggedProcess();  ///< kills it
  LoggedProcess(const LoggedProcess&) = delete;
  LoggedProcess& operator=(const LoggedProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool running() { return !wait(std::chrono::milliseconds{0}); }
  void signal(int number) const;
  /// SIGKILL; returns when it is gone.
  void kill_now();
  /// Its exit code (128 + signal when a signal ended it), or nothing after `timeout`.
  std::optional<int> wait(std::chrono::milliseconds timeout = std::chrono::seconds{20});

  std::string out() const;
  std::string err() const;
  /// Waits until a line of either output has `text` in it.
  bool says(const std::string& text,
            std::chrono::milliseconds timeout = std::chrono::seconds{20}) const;
  /// Lines of standard error with `text` in them.
  std::vector<std::string> lines_with(const std::string& text) const;

 private:
  std::string files_;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

struct MemberInfo {
  std::string id, name, address, state, reason;
  std::uint64_t incarnation = 0;
  std::uint64_t epoch = 0;
  std::int64_t pid = 0;
  bool draining = false;
  bool head = false;
};

/// What `/api/v1/cluster` says.
struct ClusterInfo {
  std::string cluster, cluster_id, broker, broker_address;
  std::uint64_t epoch = 0;
  std::uint64_t term = 0;
  std::vector<MemberInfo> nodes, ended;

  const MemberInfo* find(const std::string& name) const;
  /// State of the live member of this name, else of the last one that ended, else "".
  std::string state_of(const std::string& name) const;
  std::size_t count(const std::string& state) const;
  std::string text() const;  ///< for messages
};

std::optional<ClusterInfo> parse_cluster(const std::string& json);

std::optional<std::string> http_get(const std::string& address, const std::string& target,
                                    std::chrono::milliseconds timeout = std::chrono::seconds{2});

/// The sum over all lines of this metric, or nothing.
std::optional<double> metric(const std::string& address, const std::string& name);

struct NodeSpec {
  std::string name = "node";
  bool head = false;
  std::string join;
  std::string data;
  std::string listen = "127.0.0.1:0";
  std::string profile = "loopback";
  std::string cluster = "process-test";
  std::vector<std::string> more;         ///< further flags
  std::vector<std::string> environment;  ///< "NAME=value"
  std::vector<std::string> prefix;       ///< of the command, such as {"/usr/sbin/ip", "netns", …}
  bool member = false;                   ///< `test_member` instead of `troupe node`
};

class NodeProcess : public LoggedProcess {
 public:
  NodeProcess(const Folder& folder, NodeSpec spec);

  const NodeSpec& spec() const { return spec_; }
  /// Where it listens, once it does; empty after `timeout`.
  std::string address(std::chrono::milliseconds timeout = std::chrono::seconds{20}) const;
  /// Its view now; nothing while it is not a member or does not answer.
  std::optional<ClusterInfo> view() const;
  bool sees(const std::function<bool(const ClusterInfo&)>& condition,
            std::chrono::milliseconds timeout = std::chrono::seconds{20}) const;
  /// `count` members are up and nobody else is live.
  bool sees_up(std::size_t count,
               std::chrono::milliseconds timeout = std::chrono::seconds{20}) const;
  double metric(const std::string& name) const;

 private:
  NodeProcess(const Folder& folder, const NodeSpec& spec, const std::string& files);
  NodeSpec spec_;
  std::string files_;
  mutable std::string address_;
};

/// A port of 127.0.0.1 where nobody listens, outside of the range that the system hands out.
std::uint16_t free_port();
std::string free_address();

/// A finished run of a program.
struct RunResult {
  int code = -1;
  std::string out, err;
  std::chrono::milliseconds took{0};
};
RunResult run_program(const Folder& folder, const std::vector<std::string>& command,
                      std::chrono::milliseconds timeout = std::chrono::seconds{20});

/// Processor time (user and system) that a process has used.
std::chrono::milliseconds cpu_time(pid_t pid);

std::chrono::milliseconds since(Clock::time_point start);

/// Lines of a node's standard error that are not log lines of level info or debug.
std::vector<std::string> complaints(const std::string& err);

}  // namespace troupe::test
