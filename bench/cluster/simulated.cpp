#include "cluster/simulated.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>

#include "cluster/traffic.hpp"
#include "tests/support/sim_cluster.hpp"

namespace troupe::bench {

namespace {

using namespace std::chrono_literals;

constexpr net::Duration limit = 120s;
constexpr net::Duration step = 1ms;

net::SimConfig world_config() {
  net::SimConfig config;
  config.path.delay = 200us;
  config.path.jitter = 100us;
  return config;
}

double ms(net::Duration time) { return std::chrono::duration<double, std::milli>(time).count(); }
double seconds(net::Duration time) { return ms(time) / 1000; }

class Simulation {
 public:
  Simulation(std::uint64_t seed, const MembershipTimes& times, bool quick, Series& series)
      : cluster_(seed, times, world_config()),
        sync_(std::max<net::Duration>(times.sync_interval, 1s)),
        quick_(quick),
        series_(series) {
    cluster_.check_views(false);
  }

  expected<void> run() {
    using Step = expected<void> (Simulation::*)();
    for (const Step part : {&Simulation::form, &Simulation::idle, &Simulation::join,
                            &Simulation::leave, &Simulation::kill, &Simulation::stop}) {
      if (auto done = (this->*part)(); !done) {
        return done;
      }
    }
    return {};
  }

 private:
  net::Duration now() { return cluster_.world().elapsed(); }

  /// Virtual milliseconds from `start` until the condition holds.
  expected<double> until(net::Duration start, const std::string& what,
                         const std::function<bool()>& condition) {
    while (!condition()) {
      if (now() - start > limit) {
        return fail(ec::timeout, std::to_string(series_.nodes) + " simulated nodes, " + what +
                                     ":\n" + cluster_.differences().substr(0, 2000));
      }
      cluster_.world().run_for(step);
    }
    return ms(now() - start);
  }

  Traffic traffic() {
    auto& head = cluster_.at("head");
    Traffic result;
    for (const auto& peer : head.mesh().linked()) {
      const auto link = head.mesh().link_counters(peer);
      result.bytes[to_string(peer)] = static_cast<double>(link.bytes_sent + link.bytes_received);
    }
    result.messages = static_cast<double>(head.broker()->counters->messages_sent.load());
    return result;
  }

  expected<void> measure(const std::string& name, net::Duration start, const Traffic& before,
                         const expected<double>& time) {
    if (!time) {
      return fail(time.error());
    }
    const auto rest = sync_ - (now() - start);
    if (rest > 0s) {
      cluster_.world().run_for(rest);
    }
    const double length = seconds(now() - start);
    const auto used = traffic().since(before);
    series_.add(name + "_bytes", used.total_bytes() - idle_.bytes * length);
    series_.add(name + "_messages", used.messages - idle_.messages * length);
    return {};
  }

  expected<void> form() {
    cluster_.start_head();
    for (std::size_t i = 1; i < series_.nodes; ++i) {
      cluster_.start("n" + std::to_string(i));
    }
    const auto time = until(now(), "forming", [this] { return cluster_.converged(); });
    if (!time) {
      return fail(time.error());
    }
    series_.add("form", *time);
    cluster_.world().run_for(2s);
    return {};
  }

  expected<void> idle() {
    const auto before = traffic();
    const auto length = quick_ ? sync_ : 2 * sync_;
    cluster_.world().run_for(length);
    const auto used = traffic().since(before);
    idle_ = {used.total_bytes() / seconds(length), used.messages / seconds(length)};
    series_.add("idle_bytes", idle_.bytes);
    return {};
  }

  expected<void> join() {
    const auto before = traffic();
    const auto start = now();
    cluster_.start("late");
    const auto time = until(start, "one more joining", [this] { return cluster_.converged(); });
    series_.add("join", time.value_or(0));
    return measure("join", start, before, time);
  }

  expected<void> leave() {
    const auto before = traffic();
    const auto start = now();
    cluster_.at("late").agent().drain("bench");
    const auto time = until(start, "one leaving", [this] {
      if (cluster_.has("late") && cluster_.at("late").left()) {
        cluster_.remove("late");
      }
      return !cluster_.has("late") && cluster_.converged();
    });
    series_.add("leave", time.value_or(0));
    return measure("leave", start, before, time);
  }

  expected<void> kill() {
    const auto before = traffic();
    const auto start = now();
    cluster_.kill("n1");
    const auto at_head = until(start, "one killed", [this] {
      return cluster_.at("head").agent().status().members == cluster_.processes().size();
    });
    series_.add("kill_head", at_head.value_or(0));
    const auto time = until(start, "one killed", [this] { return cluster_.converged(); });
    series_.add("kill_all", time.value_or(0));
    return measure("kill", start, before, time);
  }

  expected<void> stop() {
    const auto victim = cluster_.at("n2").id();
    const auto start = now();
    cluster_.world().pause(victim);
    const auto suspect = until(start, "one stopped", [this, &victim] {
      const auto view = cluster_.at("head").agent().view();
      const auto* member = view->find(victim);
      return member != nullptr && member->state == MemberState::suspect;
    });
    series_.add("stop_suspect", suspect.value_or(0));
    const auto down = until(start, "one stopped", [this] {
      for (const auto& [name, process] : cluster_.processes()) {
        if (name != "n2" && process->agent().status().members + 1 != cluster_.processes().size()) {
          return false;
        }
      }
      return true;
    });
    series_.add("stop_down", down.value_or(0));
    if (!suspect || !down) {
      return fail(!suspect ? suspect.error() : down.error());
    }
    return {};
  }

  test::SimCluster cluster_;
  net::Duration sync_;
  bool quick_;
  Series& series_;
  IdleRate idle_;
};

}  // namespace

expected<void> measure_simulated(std::uint64_t seed, const MembershipTimes& times, bool quick,
                                 Series& series) {
  const auto start = std::chrono::steady_clock::now();
  expected<void> result;
  {
    Simulation simulation{seed, times, quick, series};
    result = simulation.run();
  }
  series.add("wall",
             std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return result;
}

}  // namespace troupe::bench
