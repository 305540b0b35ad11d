// References to paths: found on any node, followed when the path moves, failing with a reason when nobody hosts it.
#include <catch2/catch.hpp>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include <caf/event_based_actor.hpp>

#include "net/caf_error.hpp"
#include "runtime/actor_ref.hpp"
#include "tests/support/sim_cluster.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;

namespace {

const bool quiet = [] {
  spdlog::set_level(std::getenv("TROUPE_TEST_LOG") != nullptr ? spdlog::level::debug
                                                              : spdlog::level::off);
  return true;
}();

/// Answers with its own number added.
caf::actor spawn_adder(SimProcess& process, std::uint64_t number) {
  return process.system().spawn(
      [number](caf::event_based_actor*, int) {
        return caf::behavior{[number](std::uint64_t x) { return x + number; }};
      },
      0);
}

std::optional<expected<DirectoryEntry>> host(SimCluster& cluster, SimProcess& process,
                                             const std::string& path, const caf::actor& actor,
                                             bool exclusive = false) {
  std::optional<expected<DirectoryEntry>> result;
  process.agent().host({path, actor, exclusive, true},
                       [&](expected<DirectoryEntry> entry) { result = std::move(entry); });
  cluster.world().run_until([&] { return result.has_value(); }, 10s);
  return result;
}

struct Answer {
  std::optional<std::uint64_t> value;
  std::optional<error> problem;
};

Answer ask(SimCluster& cluster, SimProcess& process, const caf::actor& target, std::uint64_t x,
           net::Duration timeout = 20s) {
  Answer answer;
  process.system().spawn(
      [&answer, target, x, timeout](caf::event_based_actor* self, int) {
        self->request(target, timeout, x)
            .then([&answer](std::uint64_t y) { answer.value = y; },
                  [&answer](caf::error& reason) { answer.problem = to_error(reason); });
      },
      0);
  cluster.world().run_until([&] { return answer.value || answer.problem; }, timeout + 1s);
  return answer;
}

SimCluster& formed(SimCluster& cluster, int workers) {
  cluster.start_head();
  for (int i = 1; i <= workers; ++i) {
    cluster.start("n" + std::to_string(i));
  }
  REQUIRE(cluster.converge(2s));
  return cluster;
}

}  // namespace

TEST_CASE("a reference reaches the path from every node, also the own", "[directory][sim]") {
  SimCluster cluster{1};
  formed(cluster, 3);
  const auto entry =
      host(cluster, cluster.at("n1"), "run/adder/0", spawn_adder(cluster.at("n1"), 7));
  REQUIRE(entry);
  REQUIRE(entry->has_value());
  CHECK((*entry)->generation == 1);
  for (auto& [name, process] : cluster.processes()) {
    INFO(name);
    const auto ref = process->agent().ref("run/adder/0");
    CHECK(ask(cluster, *process, ref, 1).value == 8U);
    CHECK(ask(cluster, *process, ref, 2).value == 9U);
  }
}

TEST_CASE("a reference follows the path to another node", "[directory][sim]") {
  SimCluster cluster{2};
  formed(cluster, 4);
  REQUIRE(host(cluster, cluster.at("n1"), "p", spawn_adder(cluster.at("n1"), 10)));
  auto& asker = cluster.at("n3");
  const auto ref = asker.agent().ref("p");
  CHECK(ask(cluster, asker, ref, 1).value == 11U);
  // The newest claim of a path that is not exclusive wins.
  REQUIRE(host(cluster, cluster.at("n2"), "p", spawn_adder(cluster.at("n2"), 20)));
  CHECK(cluster.world().run_until(
      [&] { return ask(cluster, asker, ref, 1).value == std::optional<std::uint64_t>{21}; }, 5s));
  // The host dies; what is sent meanwhile waits for the next one.
  cluster.kill("n2");
  std::optional<Answer> late;
  asker.system().spawn(
      [&late, ref](caf::event_based_actor* self, int) {
        self->delayed_send(self, 500ms, std::uint64_t{1});
        return caf::behavior{[=, &late](std::uint64_t x) {
          self->request(ref, 20s, x)
              .then(
                  [&late](std::uint64_t y) {
                    late = Answer{y, {}};
                  },
                  [&late](caf::error& reason) {
                    late = Answer{{}, to_error(reason)};
                  });
        }};
      },
      0);
  cluster.world().run_for(2s);
  CHECK_FALSE(late);
  REQUIRE(host(cluster, cluster.at("n4"), "p", spawn_adder(cluster.at("n4"), 40)));
  REQUIRE(cluster.world().run_until([&] { return late.has_value(); }, 5s));
  CHECK(late->value == std::optional<std::uint64_t>{41});
}

TEST_CASE(
    "a message to a path that nobody hosts fails with the reason, and no more than its bound waits",
    "[directory][sim]") {
  SimCluster cluster{3};
  formed(cluster, 1);
  auto& asker = cluster.at("n1");
  const auto ref = asker.agent().ref("nobody");
  const auto start = cluster.world().elapsed();
  const auto answer = ask(cluster, asker, ref, 1);
  REQUIRE(answer.problem);
  CHECK(answer.problem->code() == ec::actor_down);
  CHECK(answer.problem->text().find("nobody") != std::string::npos);
  CHECK(cluster.world().elapsed() - start < 7s);
  std::size_t refused = 0;
  asker.system().spawn(
      [&refused, ref](caf::event_based_actor* self, int) {
        for (std::size_t i = 0; i < RefProxy::max_waiting + 10; ++i) {
          self->request(ref, 30s, std::uint64_t{1})
              .then(
                  [](std::uint64_t) {},
                  [&refused](caf::error& reason) { refused += reason == ec::would_block ? 1 : 0; });
        }
      },
      0);
  cluster.world().run_for(10s);
  CHECK(refused == 10);
}

TEST_CASE("messages that waited arrive in order", "[directory][sim]") {
  SimCluster cluster{4};
  formed(cluster, 2);
  auto& asker = cluster.at("n1");
  const auto ref = asker.agent().ref("later");
  for (std::uint64_t i = 0; i < 200; ++i) {
    caf::anon_send(ref, i);
  }
  std::vector<std::uint64_t> seen;
  const auto sink = cluster.at("n2").system().spawn(
      [&seen](caf::event_based_actor*, int) {
        return caf::behavior{[&seen](std::uint64_t x) { seen.push_back(x); }};
      },
      0);
  cluster.world().run_for(1s);
  REQUIRE(host(cluster, cluster.at("n2"), "later", sink));
  for (std::uint64_t i = 200; i < 400; ++i) {
    caf::anon_send(ref, i);
    cluster.world().run_for(1ms);
  }
  REQUIRE(cluster.world().run_until([&] { return seen.size() == 400; }, 5s));
  for (std::uint64_t i = 0; i < 400; ++i) {
    REQUIRE(seen[i] == i);
  }
}

TEST_CASE("an exclusive path has one holder; the claim of another says who has it",
          "[directory][sim]") {
  SimCluster cluster{5};
  formed(cluster, 3);
  REQUIRE(
      host(cluster, cluster.at("n1"), "x", spawn_adder(cluster.at("n1"), 1), true)->has_value());
  const auto second = host(cluster, cluster.at("n2"), "x", spawn_adder(cluster.at("n2"), 2), true);
  REQUIRE(second);
  REQUIRE_FALSE(second->has_value());
  CHECK(second->error().code() == ec::would_block);
  CHECK(second->error().text().find("n1:1") != std::string::npos);
  // Released with the actor, which ends by itself.
  cluster.at("n1").agent().unhost("x");
  cluster.world().run_for(100ms);
  const auto third = host(cluster, cluster.at("n2"), "x", spawn_adder(cluster.at("n2"), 2), true);
  REQUIRE(third->has_value());
  CHECK((*third)->generation == 2);
}

TEST_CASE("references and hosted paths survive the death of the head", "[directory][sim]") {
  SimCluster cluster{6};
  formed(cluster, 3);
  REQUIRE(
      host(cluster, cluster.at("n1"), "p", spawn_adder(cluster.at("n1"), 10), true)->has_value());
  auto& asker = cluster.at("n2");
  const auto ref = asker.agent().ref("p");
  CHECK(ask(cluster, asker, ref, 1).value == 11U);
  cluster.kill("head");
  CHECK(ask(cluster, asker, ref, 2).value == 12U);
  cluster.world().run_for(500ms);
  cluster.start_head();
  REQUIRE(cluster.converge(5s));
  CHECK(ask(cluster, asker, ref, 3).value == 13U);
  auto& third = cluster.at("n3");
  CHECK(ask(cluster, third, third.agent().ref("p"), 4).value == 14U);
  // It is still the same holder in the books of the new broker.
  const auto taken = host(cluster, third, "p", spawn_adder(third, 1), true);
  REQUIRE(taken);
  CHECK(taken->error().code() == ec::would_block);
}

TEST_CASE("draining ends hosted actors, and new ones are refused", "[directory][sim]") {
  SimCluster cluster{7};
  formed(cluster, 2);
  auto& leaver = cluster.at("n1");
  REQUIRE(host(cluster, leaver, "p", spawn_adder(leaver, 1)));
  leaver.agent().host({"slow", spawn_adder(leaver, 2), false, false}, [](auto) {});
  cluster.world().run_for(100ms);
  leaver.agent().drain("test");
  cluster.world().run_for(100ms);
  CHECK_FALSE(leaver.left());  // "slow" may go on until the deadline
  const auto refused = host(cluster, leaver, "q", spawn_adder(leaver, 3));
  CHECK(refused->error().code() == ec::closed);
  CHECK(cluster.world().run_until([&] { return leaver.left(); },
                                  cluster.times().drain_deadline + 1s));
}

TEST_CASE("looking for what nobody hosts leaves nothing behind", "[directory][sim]") {
  SimCluster cluster{8};
  formed(cluster, 2);
  auto& asker = cluster.at("n1");
  std::size_t answered = 0;
  for (int i = 0; i < 500; ++i) {
    asker.agent().resolve("none/" + std::to_string(i), 100ms,
                          [&](expected<caf::actor> found) { answered += found ? 0 : 1; });
  }
  REQUIRE(cluster.world().run_until([&] { return answered == 500; }, 10s));
  // Told with the next change of the agent's status.
  REQUIRE(host(cluster, asker, "p", spawn_adder(asker, 1)));
  CHECK(asker.agent().status().resolved <= 1);
}
