// A thousand nodes of which a tenth leaves and as many join in each minute. By default a small part of it runs; all of
// it with TROUPE_SIM_NODES=1000 TROUPE_SIM_MINUTES=10 TROUPE_SIM_SEEDS=50 (about a minute per seed and core).
#include <catch2/catch.hpp>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/process.hpp"
#include "tests/support/sim_cluster.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;

namespace {

const bool quiet = [] {
  spdlog::set_level(spdlog::level::off);
  return true;
}();

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

constexpr net::Duration settle_bound = 2s;

struct Outcome {
  bool ok = true;
  std::string problem;
  net::Duration longest{0};
  std::uint64_t changes = 0;
  std::uint64_t messages = 0;
  std::uint64_t hash = 0;
  std::uint64_t events = 0;
};

class Churn {
 public:
  Churn(std::uint64_t seed, std::size_t nodes)
      : cluster_(seed, times(), world_config()), random_(seed, 0x4348), nodes_(nodes) {
    cluster_.check_views(nodes <= 100);
    cluster_.start_head();
    for (std::size_t i = 1; i < nodes_; ++i) {
      add();
    }
  }

  Outcome run(std::uint64_t minutes) {
    settle(20s);  // all at once, against one listener
    // Every change is one leave or one join; they are spread over the minute.
    const auto per_minute = std::max<std::size_t>(2, nodes_ / 10 * 2);
    const auto broker = cluster_.at("head").broker()->counters;
    const auto messages = broker->messages_sent.load();
    for (std::uint64_t i = 0; i < minutes * per_minute && outcome_.ok; ++i) {
      const auto gap = net::Duration{std::chrono::minutes{1}} / static_cast<int>(per_minute);
      const auto start = cluster_.world().elapsed();
      if (i % 2 == 0) {
        end_one();
      } else {
        add();
      }
      ++outcome_.changes;
      settle(settle_bound);
      const auto used = cluster_.world().elapsed() - start;
      if (used < gap) {
        cluster_.world().run_for(gap - used);
      }
    }
    if (outcome_.ok && !cluster_.same_views()) {
      note("views of one epoch differ");
    }
    outcome_.messages = broker->messages_sent.load() - messages;
    outcome_.hash = cluster_.world().log_hash();
    outcome_.events = cluster_.world().events();
    return outcome_;
  }

 private:
  /// As one would set them for a cluster of this size: heartbeats are most of what goes on between changes.
  static MembershipTimes times() {
    MembershipTimes times;
    times.heartbeat_interval = Milliseconds{2'000};
    times.sync_interval = Milliseconds{15'000};
    return times;
  }

  static net::SimConfig world_config() {
    net::SimConfig config;
    config.path.delay = 200us;
    config.path.jitter = 100us;
    return config;
  }

  void add() { cluster_.start("n" + std::to_string(next_++)); }

  /// Half of them leave in good order, the others are killed.
  void end_one() {
    auto it = std::next(cluster_.processes().begin());
    std::advance(it, random_.below(cluster_.processes().size() - 1));
    const std::string name = it->first == "head" ? std::prev(it)->first : it->first;
    if (random_.below(2) == 0) {
      cluster_.kill(name);
      return;
    }
    auto& leaver = cluster_.at(name);
    leaver.agent().drain("churn");
    if (!cluster_.world().run_until([&] { return leaver.left(); }, 2s)) {
      note(name + " did not leave");
    }
    cluster_.remove(name);
  }

  void settle(net::Duration bound) {
    const auto time = cluster_.converge(bound);
    if (!time) {
      note("no convergence at " + std::to_string(cluster_.world().elapsed() / 1ms) + " ms\n" +
           cluster_.differences().substr(0, 2000));
    } else if (bound == settle_bound) {
      outcome_.longest = std::max(outcome_.longest, *time);
    }
  }

  void note(const std::string& problem) {
    if (outcome_.ok) {
      outcome_.ok = false;
      outcome_.problem = problem;
    }
  }

  SimCluster cluster_;
  PhiloxStream random_;
  std::size_t nodes_;
  std::uint64_t next_ = 1;
  Outcome outcome_;
};

}  // namespace

TEST_CASE(
    "under churn views converge within two seconds and work per change grows with the nodes only",
    "[membership][sim][churn]") {
  const auto nodes = setting("TROUPE_SIM_NODES", 100);
  const auto minutes = setting("TROUPE_SIM_MINUTES", 2);
  const auto seeds = setting("TROUPE_SIM_SEEDS", 2);
  const auto base = test_seed("churn_sim_test") % 1'000'000;
  for (std::uint64_t i = 0; i < seeds; ++i) {
    INFO("TROUPE_SEED=" << base + i << " TROUPE_SIM_SEEDS=1 repeats this");
    const auto outcome = Churn{base + i, nodes}.run(minutes);
    INFO(outcome.problem);
    REQUIRE(outcome.ok);
    const auto per_change =
        static_cast<double>(outcome.messages) / static_cast<double>(outcome.changes);
    std::printf(
        "seed %llu: %llu nodes, %llu changes, longest %lld ms, %.1f broker messages per change, "
        "%llu events\n",
        static_cast<unsigned long long>(base + i), static_cast<unsigned long long>(nodes),
        static_cast<unsigned long long>(outcome.changes),
        static_cast<long long>(outcome.longest / 1ms), per_change,
        static_cast<unsigned long long>(outcome.events));
    std::fflush(stdout);
    // A join is two changes of the view (joining, up), a leave two (draining, left): two messages per member.
    CHECK(per_change < 3.0 * static_cast<double>(nodes));
  }
}

TEST_CASE("churn: the same seed gives the same log", "[membership][sim][churn]") {
  const auto seed = test_seed("churn_sim_test") % 1'000'000;
  const auto once = Churn{seed, 40}.run(1);
  const auto again = Churn{seed, 40}.run(1);
  CHECK(once.hash == again.hash);
  CHECK(once.events == again.events);
}
