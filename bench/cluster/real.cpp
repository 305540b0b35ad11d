#include "cluster/real.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "cluster/traffic.hpp"
#include "supervision/membership.hpp"
#include "tests/cluster/support/node_process.hpp"
#include "tests/support/process.hpp"

namespace troupe::bench {

namespace {

using test::Clock;
using test::ClusterInfo;
using test::NodeProcess;
using namespace std::chrono_literals;

constexpr auto limit = 90s;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

class RealCluster {
 public:
  RealCluster(const RealOptions& options, Series& series)
      : options_(options),
        series_(series),
        sync_(options.profile == "loopback" ? MembershipTimes::loopback().sync_interval
                                            : MembershipTimes{}.sync_interval) {}

  expected<void> run() {
    using Step = expected<void> (RealCluster::*)();
    for (const Step step : {&RealCluster::form, &RealCluster::idle, &RealCluster::join,
                            &RealCluster::leave, &RealCluster::kill, &RealCluster::stop}) {
      if (auto done = (this->*step)(); !done) {
        return done;
      }
    }
    return {};
  }

 private:
  using Condition = std::function<bool(const ClusterInfo&)>;

  void start_node(const std::string& name) {
    test::NodeSpec spec;
    spec.name = name;
    spec.profile = options_.profile;
    spec.cluster = "bench";
    spec.head = nodes_.empty();
    (spec.head ? spec.listen : spec.join) = address_;
    nodes_.push_back(std::make_unique<NodeProcess>(folder_, spec));
  }

  /// Milliseconds from `start` until every node's own answer fulfils the condition. They are asked one after the
  /// other; `ask_all` tells what that adds at most.
  expected<double> until_all(Clock::time_point start, const std::string& what,
                             const Condition& condition, const NodeProcess* except = nullptr) {
    for (const auto& node : nodes_) {
      if (node.get() != except && !node->sees(condition, limit)) {
        return fail(ec::timeout,
                    std::to_string(series_.nodes) + " nodes, " + what + ": " + state_of(*node));
      }
    }
    return ms_since(start);
  }

  /// For the message of a failure.
  static std::string state_of(NodeProcess& node) {
    const auto view = node.view();
    if (view) {
      return node.spec().name + " sees " + view->text();
    }
    const bool alive = test::http_get(node.address(), "/livez").has_value();
    std::string log = node.err();
    log.erase(0, log.size() - std::min<std::size_t>(log.size(), 1000));
    return node.spec().name + " shows no view; it " + (node.running() ? "runs" : "has ended") +
           (alive ? ", /livez answers" : "") + "; its last words:\n" + log;
  }

  static Condition all_up(std::size_t count) {
    return [count](const ClusterInfo& info) {
      return info.count("up") == count && info.nodes.size() == count;
    };
  }

  static Condition state_is(const std::string& name, const std::string& state) {
    return [name, state](const ClusterInfo& info) { return info.state_of(name) == state; };
  }

  expected<Traffic> traffic() const {
    const auto text = test::http_get(address_, "/metrics");
    if (!text) {
      return fail(ec::node_unreachable, "the head at " + address_ + " does not answer /metrics");
    }
    Traffic result;
    std::istringstream in{*text};
    for (std::string line; std::getline(in, line);) {
      const auto space = line.rfind(' ');
      if (line.rfind("troupe_link_bytes_total{", 0) == 0) {
        result.bytes[line.substr(0, space)] = std::stod(line.substr(space));
      } else if (line.rfind("troupe_broker_messages_total ", 0) == 0) {
        result.messages = std::stod(line.substr(space));
      }
    }
    return result;
  }

  /// What went over the head's links since `before`, less what would have while idle. As long as the interval in which
  /// members ask the broker, so that it holds about as many of their questions as the idle time did.
  expected<void> count_change(const std::string& name, Clock::time_point start,
                              const Traffic& before) {
    std::this_thread::sleep_until(start + window());
    const auto after = traffic();
    if (!after) {
      return fail(after.error());
    }
    const double seconds = ms_since(start) / 1000;
    const auto used = after->since(before);
    series_.add(name + "_bytes", used.total_bytes() - idle_.bytes * seconds);
    series_.add(name + "_messages", used.messages - idle_.messages * seconds);
    return {};
  }

  Milliseconds window() const { return std::max<Milliseconds>(sync_, 1s); }

  expected<void> form() {
    address_ = test::free_address();
    for (std::size_t i = 0; i < series_.nodes; ++i) {
      start_node("n" + std::to_string(i));
    }
    const auto time = until_all(Clock::now(), "forming", all_up(series_.nodes));
    if (!time) {
      return fail(time.error());
    }
    series_.add("form", *time);
    // What followed the joins must be worked off before anything is called idle.
    std::this_thread::sleep_for(options_.quick ? 500ms : 2s);
    const auto start = Clock::now();
    if (auto again = until_all(start, "asking all", all_up(series_.nodes)); !again) {
      return fail(again.error());
    }
    series_.add("ask_all", ms_since(start));
    std::this_thread::sleep_for(500ms);
    return {};
  }

  std::vector<std::chrono::milliseconds> cpu_times() const {
    std::vector<std::chrono::milliseconds> all;
    for (const auto& node : nodes_) {
      all.push_back(test::cpu_time(node->pid()));
    }
    return all;
  }

  expected<void> idle() {
    const auto before = traffic();
    if (!before) {
      return fail(before.error());
    }
    const auto start = Clock::now();
    const auto cpu_before = cpu_times();
    std::this_thread::sleep_until(start + (options_.quick ? 1s : 10s));
    const auto cpu_after = cpu_times();
    const double ms = ms_since(start);
    const auto after = traffic();
    if (!after) {
      return fail(after.error());
    }
    double cpu = 0;
    double most = 0;
    double resident = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      cpu += static_cast<double>((cpu_after[i] - cpu_before[i]).count());
      const auto size = static_cast<double>(test::resident_bytes(nodes_[i]->pid()));
      most = std::max(most, size);
      resident += size;
    }
    series_.add("idle_cpu", 100 * cpu / ms);
    series_.add("idle_cpu_head",
                100 * static_cast<double>((cpu_after[0] - cpu_before[0]).count()) / ms);
    series_.add("resident_most", most / 1e6);
    series_.add("resident_mean", resident / 1e6 / static_cast<double>(nodes_.size()));
    const auto used = after->since(*before);
    idle_ = {used.total_bytes() * 1000 / ms, used.messages * 1000 / ms};
    series_.add("idle_bytes", idle_.bytes);
    return {};
  }

  expected<void> join() {
    const auto before = traffic();
    if (!before) {
      return fail(before.error());
    }
    const auto start = Clock::now();
    start_node("late");
    const auto time = until_all(start, "one more joining", all_up(series_.nodes + 1));
    if (!time) {
      return fail(time.error());
    }
    series_.add("join", *time);
    return count_change("join", start, *before);
  }

  expected<void> leave() {
    const auto before = traffic();
    if (!before) {
      return fail(before.error());
    }
    const auto leaver = std::move(nodes_.back());
    nodes_.pop_back();
    const auto start = Clock::now();
    leaver->signal(SIGTERM);
    const auto time = until_all(start, "one leaving", state_is("late", "left"));
    if (!time) {
      return fail(time.error());
    }
    series_.add("leave", *time);
    return count_change("leave", start, *before);
  }

  expected<void> kill() {
    const auto before = traffic();
    if (!before) {
      return fail(before.error());
    }
    const auto victim = std::move(nodes_.back());
    nodes_.pop_back();
    const auto name = victim->spec().name;
    const auto start = Clock::now();
    victim->signal(SIGKILL);
    if (!nodes_.front()->sees(state_is(name, "down"), limit)) {
      return fail(ec::timeout, "the head does not see that " + name + " was killed");
    }
    series_.add("kill_head", ms_since(start));
    const auto time = until_all(start, "one killed", state_is(name, "down"));
    if (!time) {
      return fail(time.error());
    }
    series_.add("kill_all", *time);
    return count_change("kill", start, *before);
  }

  expected<void> stop() {
    const NodeProcess* victim = nodes_.back().get();
    const auto name = victim->spec().name;
    const auto start = Clock::now();
    victim->signal(SIGSTOP);
    if (!nodes_.front()->sees(state_is(name, "suspect"), limit)) {
      return fail(ec::timeout, "the head does not suspect " + name + ", which was stopped");
    }
    series_.add("stop_suspect", ms_since(start));
    const auto time = until_all(start, "one stopped", state_is(name, "down"), victim);
    if (!time) {
      return fail(time.error());
    }
    series_.add("stop_down", *time);
    return {};
  }

  const RealOptions& options_;
  Series& series_;
  Milliseconds sync_;
  test::Folder folder_;
  std::string address_;
  std::vector<std::unique_ptr<NodeProcess>> nodes_;  ///< the head first
  IdleRate idle_;
};

}  // namespace

expected<void> measure_real(const RealOptions& options, Series& series) {
  return RealCluster{options, series}.run();
}

}  // namespace troupe::bench
