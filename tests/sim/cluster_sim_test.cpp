// Membership of a simulated cluster: joining, dying, hanging, leaving, and the head's death.
#include <catch2/catch.hpp>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include <caf/event_based_actor.hpp>

#include "supervision/membership_messages.hpp"
#include "tests/support/sim_cluster.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;

namespace {

const bool quiet = [] {
  // Faults are the point here.
  spdlog::set_level(std::getenv("TROUPE_TEST_LOG") != nullptr ? spdlog::level::debug
                                                              : spdlog::level::off);
  return true;
}();

constexpr std::uint64_t seeds = 10;

MemberState state_of(SimCluster& cluster, const std::string& observer, const NodeId& id) {
  const auto view = cluster.at(observer).agent().view();
  const auto* member = view->find(id);
  return member != nullptr ? member->state : MemberState::down;
}

void start_workers(SimCluster& cluster, int count) {
  for (int i = 1; i <= count; ++i) {
    cluster.start("n" + std::to_string(i));
  }
}

/// Runs until every process but `except` sees `id` in `state`.
std::optional<net::Duration> until_seen(SimCluster& cluster, const NodeId& id, MemberState state,
                                        net::Duration limit, const std::string& except = "") {
  const auto start = cluster.world().elapsed();
  const bool seen = cluster.world().run_until(
      [&] {
        for (const auto& [name, process] : cluster.processes()) {
          if (name != except && state_of(cluster, name, id) != state) {
            return false;
          }
        }
        return true;
      },
      limit);
  if (!seen) {
    return std::nullopt;
  }
  return cluster.world().elapsed() - start;
}

/// The actor published as `name` on `node`, as an ordinary actor on `from` gets it.
caf::actor published(SimCluster& cluster, SimProcess& from, SimProcess& on, const char* name) {
  caf::actor result;
  from.mesh().connect(on.address(), [&, node = on.id()](expected<NodeId>) {
    from.mesh().find(node, name, 2s, [&](expected<caf::actor> actor) {
      if (actor) {
        result = *actor;
      }
    });
  });
  REQUIRE(cluster.world().run_until([&] { return result != nullptr; }, 5s));
  return result;
}

template <class T>
void send_from(SimProcess& from, const caf::actor& to, T message) {
  from.system().spawn([to, message](caf::event_based_actor* self, int) { self->send(to, message); },
                      0);
}

}  // namespace

TEST_CASE("nodes in any order form one cluster within a second of the last start",
          "[membership][sim]") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    INFO("seed " << seed);
    SimCluster cluster{seed};
    PhiloxStream random{seed, 77};
    const auto head_at = random.below(3);
    for (std::uint64_t i = 0; i < 3; ++i) {
      if (i == head_at) {
        cluster.start_head();
      } else {
        cluster.start("n" + std::to_string(i));
      }
      cluster.world().run_for(std::chrono::milliseconds{random.below(20'000)});
    }
    const auto time = cluster.converge(1s);
    INFO(cluster.differences());
    REQUIRE(time);
  }
}

TEST_CASE("a node joins through a member that is not the head", "[membership][sim]") {
  SimCluster cluster{3};
  cluster.start_head();
  cluster.start("a");
  REQUIRE(cluster.converge(2s));
  cluster.start("b", {"a:1"});
  REQUIRE(cluster.converge(1s));
}

TEST_CASE("a killed process is down in all views within a second", "[membership][sim]") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    for (const int others : {1, 2, 5, 9}) {
      INFO("seed " << seed << ", " << others << " workers");
      SimCluster cluster{seed};
      cluster.start_head();
      start_workers(cluster, others);
      REQUIRE(cluster.converge(2s));
      const NodeId victim = cluster.at("n1").id();
      cluster.kill("n1");
      const auto time = until_seen(cluster, victim, MemberState::down, 1s);
      INFO(cluster.differences());
      REQUIRE(time);
    }
  }
}

TEST_CASE("a host that loses power is suspect first and then down", "[membership][sim]") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    INFO("seed " << seed);
    SimCluster cluster{seed};
    cluster.start_head();
    start_workers(cluster, 5);
    REQUIRE(cluster.converge(2s));
    cluster.world().run_for(5s);
    const NodeId victim = cluster.at("n1").id();
    cluster.kill("n1", net::SimCrash::host);
    REQUIRE(until_seen(cluster, victim, MemberState::suspect, 5s));
    const auto time = until_seen(cluster, victim, MemberState::down, 60s);
    REQUIRE(time);
    CHECK(*time >= cluster.times().down_after - 100ms);
    CHECK(*time <= cluster.times().down_after + 2s);
  }
}

TEST_CASE("a stopped process that wakes up in time keeps its incarnation", "[membership][sim]") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    INFO("seed " << seed);
    SimCluster cluster{seed};
    cluster.start_head();
    start_workers(cluster, 4);
    REQUIRE(cluster.converge(2s));
    cluster.world().run_for(5s);
    auto& victim = cluster.at("n2");
    const auto incarnation = victim.agent().status().incarnation;
    cluster.world().pause(victim.id());
    REQUIRE(until_seen(cluster, victim.id(), MemberState::suspect, 10s, "n2"));
    cluster.world().resume(victim.id());
    REQUIRE(until_seen(cluster, victim.id(), MemberState::up, 3s));
    CHECK(victim.agent().status().incarnation == incarnation);
    CHECK(victim.times_fenced() == 0);
    REQUIRE(cluster.converge(3s));
  }
}

TEST_CASE("a stopped process that wakes up too late is fenced and joins anew",
          "[membership][sim]") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    INFO("seed " << seed);
    SimCluster cluster{seed};
    cluster.start_head();
    start_workers(cluster, 4);
    REQUIRE(cluster.converge(2s));
    cluster.world().run_for(5s);
    auto& victim = cluster.at("n2");
    const auto incarnation = victim.agent().status().incarnation;
    cluster.world().pause(victim.id());
    REQUIRE(until_seen(cluster, victim.id(), MemberState::down, 60s, "n2"));
    cluster.world().run_for(2s);
    cluster.world().resume(victim.id());
    const auto time = cluster.converge(5s);
    INFO(cluster.differences());
    REQUIRE(time);
    CHECK(victim.times_fenced() == 1);
    CHECK(victim.agent().status().incarnation > incarnation);
  }
}

TEST_CASE("a hundred restarts at one address: always one live incarnation", "[membership][sim]") {
  SimCluster cluster{11};
  cluster.start_head();
  start_workers(cluster, 4);
  REQUIRE(cluster.converge(2s));
  std::uint64_t last = cluster.at("n1").agent().status().incarnation;
  for (int i = 0; i < 100; ++i) {
    cluster.kill("n1");
    cluster.world().run_for(std::chrono::milliseconds{(i * 13) % 100});
    auto& again = cluster.start("n1");
    REQUIRE(cluster.world().run_until([&] { return again.joined_as() != 0; }, 3s));
    CHECK(again.joined_as() > last);
    last = again.joined_as();
    int live = 0;
    for (const auto& [id, member] : cluster.at("head").agent().view()->live()) {
      live += member.address == "n1:1" ? 1 : 0;
    }
    CHECK(live == 1);
  }
  REQUIRE(cluster.converge(2s));
  CHECK(cluster.at("head").broker()->counters->tombstones == 100);
}

TEST_CASE("a drained node leaves and says so", "[membership][sim]") {
  SimCluster cluster{5};
  cluster.start_head();
  start_workers(cluster, 3);
  REQUIRE(cluster.converge(2s));
  auto& leaver = cluster.at("n1");
  leaver.agent().drain("test");
  REQUIRE(cluster.world().run_until([&] { return leaver.left(); }, 3s));
  const NodeId id = leaver.id();
  cluster.remove("n1");
  REQUIRE(cluster.converge(1s));
  const auto ended = cluster.at("n2").agent().view()->ended();
  REQUIRE_FALSE(ended.empty());
  CHECK(ended.back().id == id);
  CHECK(ended.back().state == MemberState::left);
}

TEST_CASE("a head that dies and comes back finds everybody, nobody was restarted",
          "[membership][sim]") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    for (const bool moved : {false, true}) {
      INFO("seed " << seed << (moved ? ", at another address" : ""));
      SimCluster cluster{seed};
      cluster.start_head();
      start_workers(cluster, 6);
      REQUIRE(cluster.converge(2s));
      std::map<std::string, std::uint64_t> incarnations;
      for (const auto& [name, process] : cluster.processes()) {
        incarnations[name] = process->agent().status().incarnation;
      }
      const auto epoch = cluster.at("n1").agent().view()->epoch();
      const auto store = cluster.store("head");
      cluster.kill("head");
      cluster.world().run_for(5s);
      cluster.start({"head", moved ? "elsewhere:1" : "head:1", {}, store, 0});
      const auto time = cluster.converge(5s);
      INFO(cluster.differences());
      REQUIRE(time);
      CHECK(cluster.at("n1").agent().view()->epoch() > epoch);
      for (const auto& [name, process] : cluster.processes()) {
        if (name != "head") {
          CHECK(process->agent().status().incarnation == incarnations[name]);
          CHECK(process->times_fenced() == 0);
        }
      }
    }
  }
}

TEST_CASE("a head that loses power and starts elsewhere before anybody misses it is found",
          "[membership][sim]") {
  for (const auto away : {0ms, 300ms, 1000ms, 2000ms}) {
    INFO(away.count() << " ms");
    SimCluster cluster{31};
    cluster.start_head();
    start_workers(cluster, 5);
    REQUIRE(cluster.converge(2s));
    cluster.world().run_for(3s);
    cluster.kill("head", net::SimCrash::host);
    cluster.world().run_for(away);
    cluster.start_head("head", "elsewhere:1");
    CHECK(cluster.converge(10s));
    INFO(cluster.differences());
    CHECK(cluster.at("n1").times_fenced() == 0);
  }
}

TEST_CASE("a head that moved while its members were cut off calls them again",
          "[membership][sim]") {
  SimCluster cluster{32};
  cluster.start_head();
  start_workers(cluster, 3);
  REQUIRE(cluster.converge(2s));
  cluster.world().run_for(3s);
  cluster.kill("head");
  cluster.world().run_for(1s);
  for (const auto* name : {"n1", "n2", "n3"}) {
    cluster.world().isolate(cluster.at(name).id());
  }
  cluster.start_head("head", "elsewhere:1");
  cluster.world().run_for(4s);
  for (const auto* name : {"n1", "n2", "n3"}) {
    cluster.world().rejoin(cluster.at(name).id());
  }
  const auto time = cluster.converge(20s);
  INFO(cluster.differences());
  CHECK(time);
}

TEST_CASE("a member cannot give orders to another in the broker's place", "[membership][sim]") {
  SimCluster cluster{33};
  cluster.start_head();
  start_workers(cluster, 4);
  REQUIRE(cluster.converge(2s));
  auto& bad = cluster.at("n1");
  auto& victim = cluster.at("n2");
  const auto before = victim.agent().status();
  const auto agent = published(cluster, bad, victim, agent_actor_name);
  send_from(bad, agent,
            Fenced{victim.id(), before.incarnation, before.broker.term, true, "forged"});
  send_from(bad, agent, DrainOrder{before.incarnation, 1000, "forged"});
  send_from(bad, agent, ViewDelta{before.broker.term, before.epoch, before.epoch + 1000, {}});
  auto other = before.broker;
  ++other.term;
  send_from(bad, agent, BrokerHere{other});
  cluster.world().run_for(5s);
  CHECK(victim.times_fenced() == 0);
  CHECK_FALSE(victim.ended());
  CHECK_FALSE(victim.left());
  CHECK_FALSE(victim.agent().status().draining);
  CHECK(victim.agent().status().epoch == before.epoch);
  CHECK(victim.agent().status().reconnects == before.reconnects);
}

TEST_CASE("a member cannot speak to the broker in the name of another", "[membership][sim]") {
  SimCluster cluster{34};
  cluster.start_head();
  start_workers(cluster, 5);
  REQUIRE(cluster.converge(2s));
  auto& bad = cluster.at("n1");
  auto& victim = cluster.at("n2");
  const auto incarnation = victim.agent().status().incarnation;
  const auto broker = published(cluster, bad, cluster.at("head"), broker_actor_name);
  JoinRequest join;
  join.member.id = victim.id();
  join.member.name = "n2";
  join.member.address = victim.address();
  join.clock_ms = cluster.wall_ms();
  send_from(bad, broker, join);
  send_from(bad, broker, LeaveRequest{victim.id(), incarnation, "forged"});
  for (const auto* name : {"n3", "n4"}) {
    send_from(bad, broker,
              Observation{cluster.at(name).id(), cluster.at(name).agent().status().incarnation,
                          victim.id(), incarnation, Observed::gone, "forged"});
  }
  cluster.world().run_for(5s);
  CHECK(victim.times_fenced() == 0);
  CHECK(victim.agent().status().incarnation == incarnation);
}

TEST_CASE("a node with a wrong clock is refused and changes nothing", "[membership][sim]") {
  SimCluster cluster{6};
  cluster.start_head();
  cluster.start("a");
  REQUIRE(cluster.converge(2s));
  const auto epoch = cluster.at("head").agent().view()->epoch();
  auto& wrong = cluster.start("wrong", {"head:1"}, 3'600'000);
  REQUIRE(cluster.world().run_until([&] { return wrong.ended().has_value(); }, 3s));
  CHECK(wrong.ended()->text().find("clock") != std::string::npos);
  CHECK(cluster.at("head").agent().view()->epoch() == epoch);
}

TEST_CASE("the same seed gives the same log", "[membership][sim]") {
  const auto run = [](std::uint64_t seed) {
    SimCluster cluster{seed};
    cluster.start_head();
    start_workers(cluster, 8);
    cluster.world().run_for(3s);
    cluster.kill("n3");
    cluster.world().run_for(3s);
    cluster.world().isolate(cluster.at("n4").id());
    cluster.world().run_for(20s);
    cluster.world().rejoin(cluster.at("n4").id());
    cluster.world().run_for(20s);
    return cluster.world().log_hash();
  };
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    CHECK(run(seed) == run(seed));
  }
}
