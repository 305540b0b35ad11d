// Who hosts what.
#include "tests/unit/broker_core_support.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;

TEST_CASE("a plain path goes to whoever claimed it last", "[broker]") {
  Rig rig;
  rig.up(1, 3);
  rig.happened();
  const auto first = rig.claim(2, "run/a/0", false);
  CHECK(first.code == ec::none);
  CHECK(first.entry.generation == 1);
  CHECK(first.entry.node == node(2));
  CHECK(first.entry.incarnation == 2);
  CHECK(first.entry.address == Rig::address(2));
  // Still the same thing, and then a new one.
  CHECK(rig.claim(2, "run/a/0", false, 1).entry.generation == 1);
  CHECK(rig.core->entry("run/a/0")->epoch == 1);
  CHECK(rig.claim(2, "run/a/0", false).entry.generation == 2);
  const auto moved = rig.claim(3, "run/a/0", false);
  CHECK(moved.code == ec::none);
  CHECK(moved.entry.generation == 3);
  CHECK(moved.entry.epoch == 3);
  const auto late = rig.claim(2, "run/a/0", false, 2);
  CHECK(late.code == ec::conflict);
  CHECK(late.entry.node == node(3));
  CHECK(rig.claim(3, "run/a/0", false, 2).code == ec::conflict);
  rig.happened();
  CHECK(rig.last.directory_epoch == 3);
  REQUIRE(rig.last.directory.size() == 1);
  CHECK(dump(rig.last.directory[0]) == dump(moved.entry));
  CHECK(rig.last.delta.base == rig.last.delta.epoch);
}

TEST_CASE("an exclusive path has one holder", "[broker]") {
  Rig rig;
  rig.up(1, 5);
  REQUIRE(rig.claim(2, "a", true).code == ec::none);
  const auto other = rig.claim(3, "a", true);
  CHECK(other.code == ec::would_block);
  CHECK(other.retry_ms > 0);
  CHECK(other.entry.node == node(2));
  CHECK(rig.claim(3, "a", false).code == ec::conflict);
  CHECK(rig.claim(3, "a", true, 1).code == ec::conflict);
  CHECK(rig.claim(2, "a", true, 1).entry.generation == 1);

  const auto give_back = [&](std::uint64_t n, std::uint64_t generation) {
    return rig.core->release({"a", node(n), generation}, rig.now).code;
  };
  CHECK(give_back(3, 1) == ec::conflict);
  CHECK(give_back(2, 9) == ec::conflict);
  CHECK(rig.core->release({"b", node(2), 1}, rig.now).code == ec::not_found);
  CHECK(give_back(2, 1) == ec::none);
  CHECK(give_back(2, 1) == ec::none);  // twice is fine
  CHECK_FALSE(rig.core->entry("a")->node);
  const auto next = rig.claim(3, "a", true);
  CHECK(next.code == ec::none);
  CHECK(next.entry.generation == 2);
  CHECK(give_back(2, 1) == ec::conflict);  // too late
  CHECK(rig.core->entry("a")->node == node(3));
  // After a claim whose answer was lost a node does not know the generation.
  CHECK(give_back(2, 0) == ec::conflict);
  CHECK(give_back(3, 0) == ec::none);
  CHECK_FALSE(rig.core->entry("a")->node);
  CHECK(rig.claim(3, "a", true, 2).code == ec::conflict);  // it gave it back
}

TEST_CASE("a holder may change how it holds, others may not", "[broker]") {
  Rig rig;
  rig.up(1, 3);
  rig.claim(2, "a", false);
  CHECK(rig.claim(3, "a", true).code == ec::conflict);
  const auto changed = rig.claim(2, "a", true);
  CHECK(changed.code == ec::none);
  CHECK(changed.entry.generation == 2);
  CHECK(changed.entry.exclusive);
  CHECK(changed.entry.epoch == 2);
  CHECK(rig.claim(3, "a", true).code == ec::would_block);
}

TEST_CASE("claims that cannot be", "[broker]") {
  Rig rig;
  rig.config.max_paths = 2;
  rig.start({});
  rig.up(1, 3);
  CHECK(rig.core->claim({"a", node(9), 1, false}, rig.now).code == ec::session_lost);
  CHECK(rig.core->claim({"a", node(2), 99, false}, rig.now).code == ec::session_lost);
  CHECK(rig.claim(2, "", false).code == ec::invalid_argument);
  CHECK(rig.claim(2, std::string(513, 'x'), false).code == ec::invalid_argument);
  CHECK(rig.claim(2, "a\nb", false).code == ec::invalid_argument);
  CHECK(rig.claim(2, "a\x7f", false).code == ec::invalid_argument);
  CHECK(rig.claim(2, std::string("a\0b", 3), false).code == ec::invalid_argument);
  CHECK(rig.core->state().directory.empty());
  CHECK(rig.claim(2, std::string(512, 'x'), false).code == ec::none);
  CHECK(rig.claim(2, "\xC3\xA4", false).code == ec::none);
  CHECK(rig.claim(2, "one too many", false).code == ec::limit_exceeded);
}

TEST_CASE("a directory that is full forgets free paths, and their generations are not repeated",
          "[broker]") {
  Rig rig;
  rig.config.max_paths = 2;
  rig.start({});
  rig.up(1, 3);
  CHECK(rig.claim(2, "a", false).entry.generation == 1);
  rig.claim(2, "b", true);
  CHECK(rig.core->release({"b", node(2), 1}, rig.now).code == ec::none);
  CHECK(rig.claim(2, "b", true).entry.generation == 2);
  CHECK(rig.core->release({"b", node(2), 2}, rig.now).code == ec::none);
  rig.happened();
  CHECK(rig.claim(2, "c", false).code == ec::none);
  rig.happened();
  CHECK(rig.last.removed_paths == std::vector<std::string>{"b"});
  CHECK_FALSE(rig.core->entry("b"));
  CHECK(rig.core->release({"a", node(2), 1}, rig.now).code == ec::none);
  // Above every generation it can have had.
  CHECK(rig.claim(3, "b", true).entry.generation > 2);
  CHECK(rig.core->release({"c", node(2), 3}, rig.now).code == ec::none);
  const auto before = rig.core->entry("b")->generation;
  rig.happened();
  rig.restart(1);
  rig.join(2);
  CHECK(rig.claim(2, "new", false).entry.generation > before);
}

TEST_CASE("a draining member keeps what it has and gets nothing new", "[broker]") {
  Rig rig;
  rig.up(1, 3);
  rig.claim(2, "mine", true);
  rig.claim(3, "other", false);
  rig.core->drain({"node-2", 0, ""}, rig.now);
  CHECK(rig.claim(2, "mine", true, 1).code == ec::none);
  CHECK(rig.claim(2, "mine", true).code == ec::closed);
  CHECK(rig.claim(2, "new", true).code == ec::closed);
  CHECK(rig.claim(2, "other", false).code == ec::closed);
}

TEST_CASE("paths of a member that ends", "[broker]") {
  struct Row {
    const char* what;
    std::uint64_t members;
    std::function<void(Rig&)> end;
    bool at_once;
  };
  const auto say = [](std::uint64_t observer, Observed what) {
    return [=](Rig& rig) { rig.say(observer, 2, what); };
  };
  const auto both = [](std::uint64_t a, std::uint64_t b, Observed what) {
    return [=](Rig& rig) {
      rig.say(a, 2, what);
      rig.say(b, 2, what);
    };
  };
  const auto row = GENERATE_COPY(Row{"left", 5,
                                     [](Rig& rig) {
                                       rig.core->leave({node(2), 2, ""}, rig.now);
                                     },
                                     true},
                                 Row{"gone says the head", 3, say(1, Observed::gone), false},
                                 Row{"gone says another alone", 3, say(3, Observed::gone), false},
                                 Row{"gone say two", 5, both(3, 4, Observed::gone), false},
                                 Row{"silent", 5,
                                     [=](Rig& rig) {
                                       both(1, 3, Observed::suspect)(rig);
                                       rig.pass(5s);
                                     },
                                     false},
                                 Row{"joined anew", 5, [](Rig& rig) { rig.join(2); }, false},
                                 Row{"replaced", 5,
                                     [](Rig& rig) {
                                       auto request = rig.join_request(8);
                                       request.member.address = Rig::address(2);
                                       rig.core->join(request, rig.now);
                                     },
                                     true},
                                 Row{"replaced from another host", 5,
                                     [](Rig& rig) {
                                       auto request = rig.join_request(8);
                                       request.member.address = Rig::address(2);
                                       request.member.host = "another";
                                       rig.core->join(request, rig.now);
                                     },
                                     false});
  INFO(row.what);
  Rig rig;
  rig.up(1, row.members);
  rig.claim(2, "exclusive", true);
  rig.claim(2, "plain", false);
  rig.core->resolve({"exclusive", node(3)}, rig.now);
  rig.happened();
  row.end(rig);
  REQUIRE(rig.core->view().find(node(2), 2) == nullptr);
  CHECK_FALSE(rig.core->entry("plain")->node);
  CHECK(rig.core->entry("plain")->generation == 1);
  CHECK(rig.core->entry("exclusive")->node == (row.at_once ? NodeId{} : node(2)));
  if (!row.at_once) {
    const auto lease = rig.config.times.lease;
    const auto early = rig.claim(3, "exclusive", true);
    CHECK(early.code == ec::would_block);
    CHECK(early.retry_ms == lease.count());
    rig.pass(lease - 1ms);
    const auto late = rig.claim(3, "exclusive", true);
    CHECK(late.code == ec::would_block);
    CHECK(late.retry_ms == 1);
    rig.happened();
    rig.pass(1ms);
    // By itself, so that those who wait for it are told.
    rig.happened();
    REQUIRE(rig.last.directory.size() == 1);
    CHECK_FALSE(rig.last.directory[0].node);
    CHECK(rig.core->interested("exclusive").count(node(3)) == 1);
  }
  CHECK(rig.claim(3, "exclusive", true).entry.generation == 2);
}

TEST_CASE("a process that joined anew need not wait for its own lease", "[broker]") {
  Rig rig;
  rig.up(1, 3);
  rig.claim(2, "a", true);
  rig.join(2);
  CHECK(rig.claim(3, "a", true).code == ec::would_block);
  const auto again = rig.claim(2, "a", true);
  CHECK(again.code == ec::none);
  CHECK(again.entry.generation == 2);
  CHECK(again.entry.incarnation == 4);
  rig.sync(2);
  rig.pass(1h);  // the old lease does not take it away
  CHECK(rig.core->entry("a")->incarnation == 4);
}

TEST_CASE("a fenced process may give back early", "[broker]") {
  Rig rig;
  rig.up(1, 3);
  rig.claim(2, "a", true);
  rig.say(3, 2, Observed::gone);
  CHECK(rig.claim(3, "a", true).code == ec::would_block);
  CHECK(rig.core->release({"a", node(2), 1}, rig.now).code == ec::none);
  CHECK(rig.claim(3, "a", true).code == ec::none);
  CHECK_FALSE(rig.core->next_deadline());
}

TEST_CASE("who asks for a path hears of it until it ends", "[broker]") {
  Rig rig;
  rig.up(1, 3);
  const auto empty = rig.core->resolve({"a", node(2)}, rig.now);
  CHECK(empty.term == 1);
  REQUIRE(empty.entries.size() == 1);
  CHECK(empty.entries[0].path == "a");
  CHECK_FALSE(empty.entries[0].node);
  rig.core->resolve({"a", node(3)}, rig.now);
  rig.core->resolve({"a", node(99)}, rig.now);  // not a member: an answer, but no interest
  CHECK(rig.core->interested("a") == std::set<NodeId>{node(2), node(3)});
  CHECK(rig.core->interested("b").empty());
  rig.claim(3, "a", true);
  CHECK(rig.core->resolve({"a", node(2)}, rig.now).entries[0].node == node(3));
  rig.core->leave({node(2), 2, ""}, rig.now);
  CHECK(rig.core->interested("a") == std::set<NodeId>{node(3)});
  CHECK(rig.core->resolve({std::string(9'999, 'x'), node(3)}, rig.now).entries[0].path.size() ==
        512);
  CHECK(rig.core->interested(std::string(9'999, 'x')).empty());
}

TEST_CASE("interests are of limited number", "[broker]") {
  Rig rig;
  rig.config.max_paths = 2;
  rig.start({});
  rig.up(1, 1);
  for (int i = 0; i < 100; ++i) {
    rig.core->resolve({std::to_string(i), node(1)}, rig.now);
  }
  std::size_t count = 0;
  for (int i = 0; i < 100; ++i) {
    count += rig.core->interested(std::to_string(i)).size();
  }
  CHECK(count == 16);
}

TEST_CASE("leases begin anew with a new broker", "[broker]") {
  Rig rig;
  rig.up(1, 4);
  rig.claim(2, "dead", true);
  rig.claim(3, "living", true);
  rig.claim(1, "head's", true);
  rig.say(3, 2, Observed::suspect);
  rig.say(4, 2, Observed::suspect);
  rig.pass(5s);
  REQUIRE(rig.state(2) == "down");
  rig.pass(9s);
  rig.restart(9);
  rig.sync(3);
  rig.sync(4);
  rig.pass(rig.config.times.lease - 1ms);
  CHECK(rig.claim(4, "dead", true).code == ec::would_block);
  rig.pass(1ms);
  CHECK(rig.claim(4, "dead", true).entry.generation == 2);
  CHECK(rig.claim(4, "living", true).code == ec::would_block);
  CHECK(rig.claim(3, "living", true, 1).entry.generation == 1);
  CHECK(rig.claim(4, "head's", true).code == ec::none);
}
