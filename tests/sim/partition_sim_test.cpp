// Partitions and exclusive things, one case at a time; tests/sim/exclusive_chaos_test.cpp does it at random.
#include <catch2/catch.hpp>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <set>

#include <caf/event_based_actor.hpp>

#include "tests/support/process.hpp"
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

constexpr const char* path = "test/leader/0";

}  // namespace

TEST_CASE("a holder that is cut off gives up before another one gets the path",
          "[membership][sim]") {
  for (const bool one_way : {false, true}) {
    for (const bool from_head : {false, true}) {
      INFO((one_way ? "one way" : "both ways") << (from_head ? ", head to node" : ""));
      SimCluster cluster{21};
      cluster.start_head();
      for (int i = 1; i <= 4; ++i) {
        cluster.start("n" + std::to_string(i));
      }
      REQUIRE(cluster.converge(2s));
      cluster.world().run_for(3s);
      auto& holder = cluster.at("n1");
      bool ended = false;
      const auto actor = holder.system().spawn(
          [&ended](caf::event_based_actor* self, int) {
            self->attach_functor([&ended] { ended = true; });
            return caf::behavior{[](int) {}};
          },
          0);
      bool granted = false;
      holder.agent().host({path, actor, true, true},
                          [&](expected<DirectoryEntry> entry) { granted = entry.has_value(); });
      REQUIRE(cluster.world().run_until([&] { return granted; }, 2s));
      for (const auto& [name, process] : cluster.processes()) {
        if (name == "n1") {
          continue;
        }
        if (!one_way) {
          cluster.world().partition(holder.id(), process->id());
        } else if (from_head) {
          cluster.world().partition_one_way(process->id(), holder.id());
        } else {
          cluster.world().partition_one_way(holder.id(), process->id());
        }
      }
      bool taken = false;
      auto& heir = cluster.at("n2");
      const auto other = heir.system().spawn(
          [](caf::event_based_actor*, int) { return caf::behavior{[](int) {}}; }, 0);
      const bool passed_on = cluster.world().run_until(
          [&] {
            if (!taken) {
              heir.agent().host({path, other, true, true}, [&](expected<DirectoryEntry> entry) {
                if (entry) {
                  taken = true;
                  CHECK(ended);
                }
              });
            }
            cluster.world().run_for(100ms);
            return taken;
          },
          120s);
      CHECK(passed_on);
    }
  }
}

TEST_CASE("a holder that takes its time to end keeps the path until it has", "[membership][sim]") {
  for (const bool fenced : {false, true}) {
    INFO((fenced ? "fenced" : "lease lost"));
    SimCluster cluster{22};
    cluster.start_head();
    for (int i = 1; i <= 4; ++i) {
      cluster.start("n" + std::to_string(i));
    }
    REQUIRE(cluster.converge(2s));
    cluster.world().run_for(3s);
    auto& head = cluster.at("head");
    auto& holder = cluster.at("n1");
    bool told = false;
    bool ended = false;
    const auto actor = holder.system().spawn(
        [&](caf::event_based_actor* self, int) {
          self->attach_functor([&ended] { ended = true; });
          self->set_exit_handler([self, &told](caf::exit_msg&) {
            told = true;
            self->delayed_send(self, 150ms, 1);
          });
          return caf::behavior{[self](int) { self->quit(); }};
        },
        0);
    bool granted = false;
    holder.agent().host({path, actor, true, true},
                        [&](expected<DirectoryEntry> entry) { granted = entry.has_value(); });
    REQUIRE(cluster.world().run_until([&] { return granted; }, 2s));
    if (fenced) {
      cluster.world().pause(holder.id());
      REQUIRE(cluster.world().run_until(
          [&] { return head.agent().view()->find(holder.id()) == nullptr; }, 60s));
      cluster.world().resume(holder.id());
    } else {
      cluster.world().partition(holder.id(), head.id());
    }
    REQUIRE(cluster.world().run_until([&] { return told; }, 10s));
    cluster.world().heal(holder.id(), head.id());
    // A fenced node that is back may take its own path at once, another node one that was given back.
    auto& heir = fenced ? holder : cluster.at("n2");
    const auto next = heir.system().spawn(
        [](caf::event_based_actor*, int) { return caf::behavior{[](int) {}}; }, 0);
    bool taken = false;
    CHECK(cluster.world().run_until(
        [&] {
          heir.agent().host({path, next, true, true}, [&](expected<DirectoryEntry> entry) {
            if (entry && !taken) {
              taken = true;
              CHECK(ended);
            }
          });
          cluster.world().run_for(5ms);
          return taken;
        },
        30s));
  }
}
