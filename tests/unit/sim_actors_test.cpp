#include <catch2/catch.hpp>

#include <caf/all.hpp>

#include "net/sim.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace std::chrono_literals;

namespace {

struct TestingSystem {
  TestingSystem() {
    config.set("scheduler.policy", caf::atom("testing"));
    config.set("logger.verbosity", caf::atom("quiet"));
    system = std::make_unique<caf::actor_system>(config);
    // The actors of a crashed node never end.
    system->await_actors_before_shutdown(false);
  }
  caf::actor_system_config config;
  std::unique_ptr<caf::actor_system> system;
};

}  // namespace

TEST_CASE("sim: actors run on virtual time next to the network") {
  SimWorld world(40);
  SimTransport& a = world.make_transport(world.node_id(0), "a:1");
  world.make_transport(world.node_id(1), "b:1");
  TestingSystem one;
  TestingSystem two;
  REQUIRE(world.add_actor_system(*one.system, world.node_id(0)));
  REQUIRE(world.add_actor_system(*two.system, world.node_id(1)));

  // Each function takes an argument: without one, CAF's header binds a reference to a null tuple,
  // which UBSan reports.
  std::vector<std::pair<char, Duration>> ticks;
  const auto note = [&](char who) { ticks.emplace_back(who, world.elapsed()); };
  const auto ticker = [&](char who, std::chrono::milliseconds period) {
    return [&note, who, period](caf::event_based_actor* self, int) -> caf::behavior {
      self->delayed_send(self, period, 1);
      return {[&note, self, who, period](int n) {
        note(who);
        if (n < 3) {
          self->delayed_send(self, period, n + 1);
        }
      }};
    };
  };
  one.system->spawn(ticker('a', 10ms), 0);
  two.system->spawn(ticker('b', 15ms), 0);
  world.run_for(1s);
  const std::vector<std::pair<char, Duration>> wanted{{'a', 10ms}, {'b', 15ms}, {'a', 20ms},
                                                      {'a', 30ms}, {'b', 30ms}, {'b', 45ms}};
  CHECK(ticks == wanted);

  // A request that nobody answers times out at its virtual time; the executor is not "on thread"
  // while actors run, and what they post is queued.
  std::vector<caf::response_promise> kept;
  auto silent = one.system->spawn(
      [&kept](caf::event_based_actor* self, int) -> caf::behavior {
        return {[self, &kept](int) {
          kept.push_back(self->make_response_promise());
          return kept.back();
        }};
      },
      0);
  Duration failed{};
  bool posted = false;
  one.system->spawn(
      [&](caf::event_based_actor* self, int) {
        a.executor(StreamPurpose::link).post([&] { posted = true; });
        CHECK_FALSE(posted);
        CHECK_FALSE(a.executor(StreamPurpose::link).on_thread());
        self->request(silent, 250ms, 1)
            .then([](int) { FAIL("no answer expected"); },
                  [&](caf::error&) { failed = world.elapsed(); });
      },
      0);
  CHECK(world.run_until([&] { return failed.count() != 0; }, 10s));
  CHECK(failed == 1250ms);
  CHECK(posted);

  // A paused node's actors stand still, a crashed one's for ever.
  ticks.clear();
  world.pause(world.node_id(1));
  two.system->spawn(ticker('b', 10ms), 0);
  world.run_for(1s);
  CHECK(ticks.empty());
  world.resume(world.node_id(1));
  world.run_for(1s);
  CHECK(ticks.size() == 3);
  world.crash(world.node_id(1));
  two.system->spawn(ticker('b', 10ms), 0);
  world.run_for(1s);
  CHECK(ticks.size() == 3);
  kept.clear();
  world.remove_actor_system(*one.system);
  world.remove_actor_system(*two.system);
}
