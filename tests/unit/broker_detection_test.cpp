// What the broker makes of what observers say.
#include "tests/unit/broker_core_support.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;

namespace {

constexpr auto alive = Observed::alive;
constexpr auto silent = Observed::suspect;
constexpr auto gone = Observed::gone;

struct Step {
  std::uint64_t observer;
  std::uint64_t subject;
  Observed what;
};

}  // namespace

TEST_CASE("what observers say decides", "[broker]") {
  struct Row {
    const char* what;
    std::uint64_t members;
    std::vector<Step> steps;
    Milliseconds wait;
    const char* state;  // of member 2
  };
  const Milliseconds down{5'000};
  const Milliseconds lone{60'000};
  const auto row = GENERATE_COPY(
      Row{"nobody said anything", 5, {}, lone, "up"}, Row{"alive", 5, {{1, 2, alive}}, lone, "up"},
      Row{"one does not hear it", 5, {{3, 2, silent}}, 0ms, "suspect"},
      Row{"one thinks it is gone", 5, {{3, 2, gone}}, 0ms, "suspect"},
      Row{"heard again", 5, {{3, 2, silent}, {3, 2, alive}}, lone, "up"},
      Row{"one of two hears it again",
          5,
          {{3, 2, silent}, {4, 2, silent}, {3, 2, alive}},
          0ms,
          "suspect"},
      Row{"three members: one gone is enough", 3, {{3, 2, gone}}, 0ms, "down"},
      Row{"four members: it is not", 4, {{3, 2, gone}}, 0ms, "suspect"},
      Row{"four members: two are", 4, {{3, 2, gone}, {1, 2, gone}}, 0ms, "down"},
      Row{"gone and silent are not two gone",
          4,
          {{3, 2, gone}, {1, 2, silent}},
          down - 1ms,
          "suspect"},
      Row{"but two who confirm", 4, {{3, 2, gone}, {1, 2, silent}}, down, "down"},
      Row{"three members: one silent waits", 3, {{3, 2, silent}}, down - 1ms, "suspect"},
      Row{"three members: one silent is enough", 3, {{3, 2, silent}}, down, "down"},
      Row{"five members: two silent wait",
          5,
          {{3, 2, silent}, {4, 2, silent}},
          down - 1ms,
          "suspect"},
      Row{"five members: two silent", 5, {{3, 2, silent}, {4, 2, silent}}, down, "down"},
      Row{"one alone does not bring it down", 5, {{3, 2, silent}}, lone - 1ms, "suspect"},
      Row{"but in the end", 5, {{3, 2, silent}}, lone, "down"},
      Row{"the head vouches", 5, {{3, 2, silent}, {1, 2, alive}}, lone + lone, "suspect"},
      Row{"the head alone does not bring it down", 5, {{1, 2, silent}}, lone - 1ms, "suspect"},
      Row{"twice the same is one", 5, {{3, 2, gone}, {3, 2, gone}}, lone - 1ms, "suspect"},
      Row{"itself", 3, {{2, 2, gone}}, lone, "up"},
      Row{"an observer that is suspect does not confirm",
          5,
          {{1, 4, silent}, {4, 2, gone}, {3, 2, gone}},
          down,
          "suspect"},
      Row{"nor begins a suspicion", 5, {{1, 4, silent}, {4, 2, gone}}, down, "up"},
      Row{"nor vouches",
          5,
          {{3, 2, silent}, {4, 2, alive}, {1, 4, silent}, {1, 4, silent}},
          lone,
          "down"},
      Row{"the head's word counts whatever others say of it",
          4,
          {{3, 1, silent}, {4, 1, silent}, {1, 2, gone}, {3, 2, gone}},
          0ms,
          "down"});
  INFO(row.what);
  Rig rig;
  rig.up(1, row.members);
  for (const auto& step : row.steps) {
    rig.say(step.observer, step.subject, step.what);
  }
  rig.pass(row.wait);
  CHECK(rig.state(2) == row.state);
  CHECK(rig.state(1) == "up");
}

TEST_CASE("a suspicion names who said what, and its end clears the reason", "[broker]") {
  Rig rig;
  rig.up(1, 4);
  rig.happened();
  rig.now = moment(100);
  rig.say(3, 2, silent, "no heartbeat for 2 s");
  CHECK_THAT(rig.reason(2), Catch::Contains("node-3") && Catch::Contains("no heartbeat for 2 s"));
  CHECK(rig.member(2)->since_ms == rig.now.wall_ms);
  rig.say(4, 2, silent);
  CHECK(rig.happened() == Strings{"2:suspect"});
  CHECK(rig.last.delta.changed.size() == 1);
  rig.now = moment(200);
  rig.say(3, 2, alive);
  rig.say(4, 2, alive);
  CHECK(rig.state(2) == "up");
  CHECK(rig.member(2)->since_ms == rig.now.wall_ms);
  CHECK(rig.happened() == Strings{"2:up"});
}

TEST_CASE("the reason stays short however much observers write", "[broker]") {
  Rig rig;
  rig.up(1, 40);
  for (std::uint64_t n = 3; n <= 40; ++n) {
    rig.say(n, 2, silent, std::string(100'000, 'x'));
  }
  rig.pass(5s);
  CHECK(rig.state(2) == "down");
  CHECK(rig.reason(2).size() < 1'000);
}

TEST_CASE("statements of and about other incarnations are ignored", "[broker]") {
  Rig rig;
  rig.up(1, 3);
  const auto say = [&](std::uint64_t observer, std::uint64_t subject) {
    rig.core->observe({node(3), observer, node(2), subject, gone, ""}, rig.now);
  };
  say(99, 2);
  say(3, 99);
  rig.core->observe({node(77), 1, node(2), 2, gone, ""}, rig.now);
  rig.core->observe({node(3), 3, node(2), 2, static_cast<Observed>(9), ""}, rig.now);
  CHECK(rig.state(2) == "up");
  say(3, 2);
  CHECK(rig.state(2) == "down");
  say(3, 2);
  CHECK(rig.core->view().live().size() == 2);
}

TEST_CASE("down: tombstone, fence, events", "[broker]") {
  Rig rig;
  rig.up(1, 3);
  rig.happened();
  rig.say(1, 2, gone, "refused");
  CHECK(rig.happened() == Strings{"2:down"});
  CHECK(rig.last.tombstones.size() == 1);
  REQUIRE(rig.last.fenced.size() == 1);
  CHECK(rig.last.fenced[0].node == node(2));
  CHECK_FALSE(rig.last.fenced[0].final);
  CHECK_THAT(rig.last.fenced[0].reason, Catch::Contains("refused"));
  CHECK(rig.core->tombstone_count() == 1);
}

TEST_CASE("what an observer said goes with it", "[broker]") {
  Rig rig;
  rig.up(1, 6);
  rig.say(3, 2, silent);
  REQUIRE(rig.state(2) == "suspect");
  SECTION("when it leaves") { rig.core->leave({node(3), 3, ""}, rig.now); }
  SECTION("when it joins anew") { rig.join(3); }
  SECTION("when it goes down") {
    rig.say(1, 3, gone);
    rig.say(4, 3, gone);
    REQUIRE(rig.state(3) == "down");
  }
  CHECK(rig.state(2) == "up");
}

TEST_CASE("an observer that becomes suspect no longer confirms, and does again afterwards",
          "[broker]") {
  Rig rig;
  rig.up(1, 6);
  rig.say(3, 2, silent);
  rig.say(4, 2, silent);
  rig.say(1, 4, silent);
  rig.pass(20s);
  CHECK(rig.state(2) == "suspect");
  rig.say(1, 4, alive);
  CHECK(rig.state(4) == "up");
  CHECK(rig.state(2) == "down");
}

TEST_CASE("two that accuse each other do not both go down", "[broker]") {
  Rig rig;
  rig.up(1, 5);
  rig.say(2, 3, silent);
  rig.say(3, 2, silent);
  for (const auto n : {2, 3}) {
    rig.say(1, static_cast<std::uint64_t>(n), alive);
  }
  rig.pass(10s);
  CHECK(rig.state(2) == "up");
  CHECK(rig.state(3) == "suspect");
}

TEST_CASE("a circle of accusations comes to rest", "[broker]") {
  Rig rig;
  rig.up(1, 5);
  for (int round = 0; round < 5; ++round) {
    for (const auto& [a, b] : {std::pair{2, 3}, std::pair{3, 4}, std::pair{4, 2}}) {
      rig.say(1, static_cast<std::uint64_t>(b), alive);
      rig.say(static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b), silent);
    }
    rig.pass(1s);
  }
  rig.pass(10min);
  CHECK(rig.core->view().live().size() == 5);
}

TEST_CASE("when the cluster shrinks to three one observer is enough", "[broker]") {
  Rig rig;
  rig.up(1, 4);
  rig.say(3, 2, silent);
  rig.pass(10s);
  REQUIRE(rig.state(2) == "suspect");
  rig.core->leave({node(4), 4, ""}, rig.now);
  CHECK(rig.state(2) == "down");
}

TEST_CASE("the word of one who need not observe any more fades", "[broker]") {
  Rig rig;
  rig.up(1, 9);
  const auto fade = rig.config.times.sync_interval * 3;
  // Ring observers of 2 are 3 and 4; 7 was one once.
  SECTION("as a voucher") {
    rig.say(7, 2, alive);
    rig.say(3, 2, silent);
    rig.pass(rig.config.times.lone_down_after);
    CHECK(rig.state(2) == "down");
  }
  SECTION("as an accuser") {
    rig.say(7, 2, silent);
    rig.pass(fade);
    CHECK(rig.state(2) == "suspect");
    rig.pass(fade);
    CHECK(rig.state(2) == "up");
  }
  SECTION("but not that of one who must observe") {
    rig.say(3, 2, alive);
    rig.say(4, 2, silent);
    rig.pass(1h);
    CHECK(rig.state(2) == "suspect");
  }
}

TEST_CASE("joining and draining members are suspected too, and come back as they were",
          "[broker]") {
  Rig rig;
  rig.up(1, 4);
  rig.join(5);
  rig.core->drain({"node-2", 0, ""}, rig.now);
  rig.say(1, 2, silent);
  rig.say(1, 5, silent);
  CHECK(rig.state(2) == "suspect");
  CHECK(rig.state(5) == "suspect");
  rig.say(1, 2, alive);
  rig.say(1, 5, alive);
  CHECK(rig.state(2) == "draining");
  CHECK(rig.state(5) == "joining");
  rig.sync(5);
  CHECK(rig.state(5) == "up");
}

TEST_CASE("a member that confirms the view while suspect is up when it is heard again",
          "[broker]") {
  Rig rig;
  rig.up(1, 4);
  rig.join(5);
  rig.say(1, 5, silent);
  rig.sync(5);
  CHECK(rig.state(5) == "suspect");
  rig.say(1, 5, alive);
  CHECK(rig.state(5) == "up");
}

TEST_CASE("observers end a dead member within the grace time after a restart", "[broker]") {
  Rig rig;
  rig.up(1, 5);
  rig.restart(9);
  rig.say(3, 2, gone);
  CHECK(rig.state(2) == "suspect");
  rig.say(4, 2, gone);
  CHECK(rig.state(2) == "down");
}

TEST_CASE("a quick return does not wait for ticks", "[broker]") {
  Rig rig;
  rig.up(1, 3);
  CHECK_FALSE(rig.core->next_deadline());
  rig.say(3, 2, silent);
  REQUIRE(rig.core->next_deadline());
  CHECK(*rig.core->next_deadline() == rig.now.steady + rig.config.times.down_after);
  rig.say(3, 2, alive);
  CHECK_FALSE(rig.core->next_deadline());
}
