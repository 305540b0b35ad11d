// Joins, syncs, drains and departures. What observers say: broker_detection_test.cpp; paths:
// broker_directory_test.cpp.
#include "tests/unit/broker_core_support.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;

TEST_CASE("a first broker creates the cluster", "[broker]") {
  Rig rig;
  CHECK(rig.core->info().term == 1);
  CHECK(rig.core->info().cluster_id == NodeId{7, 7});
  CHECK(rig.core->info().broker == node(1));
  CHECK(rig.core->view().epoch() == 0);
  CHECK(rig.core->has_changes());
  CHECK(rig.happened() == Strings{"1:cluster"});
  CHECK_FALSE(rig.core->has_changes());
  CHECK(rig.core->take_batch().empty());
  CHECK_FALSE(rig.core->next_deadline());
}

TEST_CASE("a member joins, confirms the view and is up", "[broker]") {
  Rig rig;
  rig.happened();
  const auto reply = rig.join(1);
  CHECK(reply.code == ec::none);
  CHECK(reply.incarnation == 1);
  CHECK(reply.snapshot.epoch == 1);
  CHECK(reply.snapshot.members.size() == 1);
  CHECK(reply.times.lease == rig.config.times.lease);
  CHECK(rig.state(1) == "joining");
  CHECK(rig.member(1)->head);
  CHECK(rig.member(1)->resources.at("cpu") == 4.0);

  rig.now = moment(20);
  // With another term it does not hold this broker's view.
  CHECK(rig.core->sync({node(1), 1, 0, 1}, rig.now).code == ec::none);
  CHECK(rig.state(1) == "joining");
  const auto synced = rig.sync(1);
  CHECK(synced.code == ec::none);
  CHECK(rig.state(1) == "up");
  CHECK(rig.member(1)->since_ms == rig.now.wall_ms);
  CHECK(synced.delta.base == 1);
  CHECK(synced.delta.epoch == 2);
  CHECK(rig.happened() == Strings{"1:joining", "1:up"});
  CHECK(rig.last.delta.base == 0);
  CHECK(rig.last.delta.epoch == 2);
  REQUIRE(rig.last.delta.changed.size() == 1);  // once, as it is now
  CHECK(rig.last.delta.changed[0].state == MemberState::up);
  CHECK(rig.last.next_incarnation == 2);

  CHECK(rig.join(2).incarnation == 2);
  CHECK_FALSE(rig.member(2)->head);
}

TEST_CASE("joins are refused with a reason and change nothing", "[broker]") {
  Rig rig;
  rig.config.max_members = 2;
  rig.start({});
  rig.up(1, 2);
  rig.happened();
  struct Row {
    const char* what;
    std::function<void(JoinRequest&)> change;
    const char* text;
  };
  const auto skew = rig.config.times.max_clock_skew.count();
  const auto row = GENERATE_COPY(
      Row{"a foreign cluster",
          [](JoinRequest& r) {
            r.cluster_id = NodeId{8, 8};
          },
          "belongs to"},
      Row{"a clock behind", [skew](JoinRequest& r) { r.clock_ms -= skew + 1; }, "30001 ms apart"},
      Row{"a clock ahead", [skew](JoinRequest& r) { r.clock_ms += skew + 1; }, "30001 ms apart"},
      Row{"a clock far off", [](JoinRequest& r) { r.clock_ms = INT64_MIN; }, "ms apart"},
      Row{"no id", [](JoinRequest& r) { r.member.id = {}; }, "no node id"},
      Row{"no address", [](JoinRequest& r) { r.member.address.clear(); }, "no address"},
      Row{"a name too long", [](JoinRequest& r) { r.member.name.assign(513, 'x'); }, "512 bytes"},
      Row{"a name with an escape", [](JoinRequest& r) { r.member.name = "\x1b[2J"; }, "control"},
      Row{"labels without end",
          [](JoinRequest& r) {
            for (int i = 0; i < 65; ++i) {
              r.member.labels[std::to_string(i)] = "x";
            }
          },
          "64 resources"},
      Row{"the head's address", [](JoinRequest& r) { r.member.address = Rig::address(1); },
          "the broker's own"},
      Row{"too many", [](JoinRequest&) {}, "limit of 2 members"});
  INFO(row.what);
  auto request = rig.join_request(3);
  row.change(request);
  const auto before = rig.core->view().hash();
  const auto reply = rig.core->join(request, rig.now);
  CHECK(reply.code == ec::handshake_refused);
  CHECK_THAT(reply.text, Catch::Contains(row.text));
  CHECK(reply.snapshot.members.empty());
  CHECK(rig.core->view().hash() == before);
  REQUIRE(rig.happened().size() == 1);
  CHECK(rig.last.events[0].what == "refused");
  CHECK(rig.last.delta.base == rig.last.delta.epoch);
  // Endless retries do not fill the history, but it does not fall silent either.
  CHECK(rig.core->join(request, rig.now).code == ec::handshake_refused);
  CHECK(rig.happened().empty());
  rig.pass(61s);
  request.clock_ms += 61'000;
  CHECK(rig.core->join(request, rig.now).code == ec::handshake_refused);
  CHECK(rig.happened().size() == 1);
}

TEST_CASE("a clock within the limit is fine, and a full cluster takes replacements", "[broker]") {
  Rig rig;
  rig.config.max_members = 2;
  rig.start({});
  auto request = rig.join_request(2);
  request.clock_ms += rig.config.times.max_clock_skew.count();
  CHECK(rig.core->join(request, rig.now).code == ec::none);
  rig.up(1, 1);
  CHECK(rig.join(2).code == ec::none);  // anew
  auto same_address = rig.join_request(3);
  same_address.member.address = Rig::address(2);
  CHECK(rig.core->join(same_address, rig.now).code == ec::none);
  CHECK(rig.core->view().live().size() == 2);
}

TEST_CASE("a member of a later broker ends this one", "[broker]") {
  Rig rig;
  rig.up(1, 2);
  rig.happened();
  SECTION("by a join") {
    auto request = rig.join_request(3);
    request.term = 2;
    CHECK(rig.core->join(request, rig.now).code == ec::none);  // of no cluster: says nothing
    request.cluster_id = {7, 7};
    CHECK(rig.core->join(request, rig.now).code == ec::closed);
  }
  SECTION("by a sync") { CHECK(rig.core->sync({node(2), 2, 2, 1}, rig.now).code == ec::closed); }
  REQUIRE(rig.core->outdated());
  // From here on it decides nothing.
  rig.happened();
  CHECK(rig.join(4).code == ec::closed);
  CHECK(rig.sync(2).code == ec::closed);
  CHECK(rig.claim(2, "a", true).code == ec::closed);
  CHECK(rig.core->release({"a", node(2), 1}, rig.now).code == ec::closed);
  CHECK(rig.core->drain({"node-2", 0, ""}, rig.now).code == ec::closed);
  CHECK(rig.core->leave({node(2), 2, ""}, rig.now).code == ec::closed);
  rig.say(1, 2, Observed::gone);
  rig.pass(1h);
  CHECK_FALSE(rig.core->next_deadline());
  CHECK(rig.core->take_batch().empty());
}

TEST_CASE("the same incarnation comes back", "[broker]") {
  Rig rig;
  rig.up(1, 3);
  rig.happened();
  SECTION("with nothing new") {
    const auto reply = rig.join(2, 2);
    CHECK(reply.code == ec::none);
    CHECK(reply.incarnation == 2);
    CHECK(rig.happened().empty());
    CHECK(rig.core->take_batch().empty());
  }
  SECTION("from another address") {
    rig.claim(2, "a", true);
    auto request = rig.join_request(2, 2);
    request.member.address = "10.1.1.1:1";
    CHECK(rig.core->join(request, rig.now).code == ec::none);
    CHECK(rig.happened().empty());
    CHECK(rig.last.delta.changed.size() == 1);
    CHECK(rig.member(2)->address == "10.1.1.1:1");
    CHECK(rig.core->entry("a")->address == "10.1.1.1:1");
    CHECK(rig.core->entry("a")->generation == 1);
    // The old address is free for others.
    auto other = rig.join_request(5);
    other.member.address = Rig::address(2);
    CHECK(rig.core->join(other, rig.now).code == ec::none);
    CHECK(rig.state(2) == "up");
  }
  SECTION("after a suspicion") {
    rig.say(1, 2, Observed::suspect, "silent");
    CHECK(rig.state(2) == "suspect");
    rig.happened();
    CHECK(rig.join(2, 2).code == ec::none);
    CHECK(rig.state(2) == "up");
    CHECK(rig.happened() == Strings{"2:returned"});
    rig.pass(10min);
    CHECK(rig.state(2) == "up");
  }
  SECTION("of an incarnation that is not known") {
    const auto reply = rig.join(2, 99);
    CHECK(reply.code == ec::session_lost);
    CHECK_THAT(reply.text, Catch::Contains("not known"));
    CHECK(rig.join(9, 1).code == ec::session_lost);
    CHECK(rig.core->take_batch().empty());
  }
  SECTION("of an incarnation that has ended") {
    rig.say(1, 2, Observed::gone, "refused");
    CHECK(rig.state(2) == "down");
    const auto reply = rig.join(2, 2);
    CHECK(reply.code == ec::session_lost);
    CHECK_THAT(reply.text, Catch::Contains("says gone: refused"));
    CHECK(rig.sync(2, 2).code == ec::session_lost);
    const auto anew = rig.join(2);
    CHECK(anew.code == ec::none);
    CHECK(anew.incarnation == 4);
  }
}

TEST_CASE("a join that is repeated because its answer was late gives the same incarnation",
          "[broker]") {
  Rig rig;
  rig.up(1, 1);
  const auto first = rig.join(2).incarnation;
  rig.happened();
  const auto epoch = rig.core->view().epoch();
  CHECK(rig.join(2).incarnation == first);
  CHECK(rig.core->view().epoch() == epoch);
  CHECK(rig.sync(2).code == ec::none);
  CHECK(rig.state(2) == "up");
  // Once it has confirmed, the same request comes from a node that has lost its memory.
  CHECK(rig.join(2).incarnation > first);
}

TEST_CASE("a live member that joins anew gets a new incarnation", "[broker]") {
  Rig rig;
  rig.up(1, 2);
  rig.happened();
  const auto epoch = rig.core->view().epoch();
  CHECK(rig.join(2).incarnation == 3);
  CHECK(rig.core->view().epoch() == epoch + 2);
  CHECK(rig.core->view().live().size() == 2);
  CHECK(rig.happened() == Strings{"2:down", "2:joining"});
  CHECK(rig.last.events[0].reason == "joined anew");
  CHECK(rig.last.delta.changed.size() == 2);
  REQUIRE(rig.last.tombstones.size() == 1);
  CHECK_FALSE(rig.last.tombstones[0].replaced);
  REQUIRE(rig.last.fenced.size() == 1);
  CHECK(rig.last.fenced[0].incarnation == 2);
  CHECK_FALSE(rig.last.fenced[0].final);
  CHECK(rig.core->tombstone_count() == 1);
}

TEST_CASE("a new process at the same address replaces the old one for good", "[broker]") {
  Rig rig;
  rig.up(1, 4);  // more than three: no observer is needed to confirm
  REQUIRE(rig.claim(2, "a", true).code == ec::none);
  rig.happened();
  auto request = rig.join_request(5);
  request.member.address = Rig::address(2);
  CHECK(rig.core->join(request, rig.now).code == ec::none);
  CHECK(rig.state(2) == "down");
  CHECK(rig.happened() == Strings{"2:down", "5:joining"});
  REQUIRE(rig.last.tombstones.size() == 1);
  CHECK(rig.last.tombstones[0].replaced);
  REQUIRE(rig.last.fenced.size() == 1);
  CHECK(rig.last.fenced[0].final);
  CHECK(rig.last.fenced[0].term == 1);
  // Its process is gone: nothing to wait for.
  CHECK_FALSE(rig.core->entry("a")->node);
  CHECK(rig.claim(5, "a", true).entry.generation == 2);
  // The old process is out, with its incarnation and without, also after a restart of the broker.
  rig.restart(6);
  CHECK(rig.join(2, 2).code == ec::session_lost);
  const auto reply = rig.join(2);
  CHECK(reply.code == ec::unauthorized);
  CHECK_THAT(reply.text, Catch::Contains("another process took over"));
}

TEST_CASE("a member that never confirms the view goes down", "[broker]") {
  Rig rig;
  rig.up(1, 1);
  rig.join(2);
  const auto limit = rig.config.times.lease + rig.config.times.down_after;
  rig.pass(limit - 1ms);
  CHECK(rig.state(2) == "joining");
  rig.pass(1ms);
  CHECK(rig.state(2) == "down");
  CHECK_THAT(rig.reason(2), Catch::Contains("never confirmed"));
  rig.pass(1h);
  CHECK(rig.state(1) == "up");
}

TEST_CASE("a sync brings what is missing", "[broker]") {
  Rig rig;
  rig.config.max_delta_log = 4;
  rig.start({});
  rig.up(1, 2);
  const View old{rig.core->view().snapshot()};
  const auto ask = [&](std::uint64_t epoch) {
    return rig.core->sync({node(1), 1, 1, epoch}, rig.now);
  };
  rig.up(3, 3);
  SECTION("as a delta, each member once") {
    const auto reply = ask(old.epoch());
    REQUIRE(reply.snapshot.empty());
    CHECK(reply.delta.changed.size() == 1);
    auto copy = old;
    CHECK(copy.apply(reply.delta) == View::Applied::yes);
    CHECK(copy.hash() == rig.core->view().hash());
  }
  SECTION("as nothing") {
    const auto reply = ask(rig.core->view().epoch());
    CHECK(reply.snapshot.empty());
    CHECK(reply.delta.base == reply.delta.epoch);
    CHECK(reply.delta.changed.empty());
  }
  SECTION("as a snapshot when the log does not reach back") {
    rig.up(4, 9);
    rig.happened();
    const auto reply = ask(old.epoch());
    REQUIRE(reply.snapshot.size() == 1);
    CHECK(View{reply.snapshot[0]}.hash() == rig.core->view().hash());
  }
  SECTION("as a snapshot for an epoch that cannot be") {
    REQUIRE(ask(99'999).snapshot.size() == 1);
    CHECK_FALSE(rig.core->outdated());
  }
  SECTION("as a snapshot for a member that does not know this broker yet") {
    rig.restart(8);
    const auto reply = rig.core->sync({node(3), 3, 1, rig.core->view().epoch()}, rig.now);
    REQUIRE(reply.snapshot.size() == 1);
    CHECK(reply.snapshot[0].broker.term == 2);
    CHECK(reply.snapshot[0].broker.broker == node(8));
  }
}

TEST_CASE("a node drains and leaves", "[broker]") {
  Rig rig;
  rig.up(1, 3);
  rig.happened();
  const auto drain = [&](const std::string& text, std::int64_t deadline = 0) {
    return rig.core->drain({text, deadline, "update"}, rig.now);
  };
  SECTION("by name, with the cluster's deadline") {
    CHECK(drain("node-2").code == ec::none);
    CHECK(rig.state(2) == "draining");
    CHECK(rig.reason(2) == "update");
    CHECK(rig.happened() == Strings{"2:draining"});
    REQUIRE(rig.last.drains.size() == 1);
    CHECK(rig.last.drains[0].node == node(2));
    CHECK(rig.last.drains[0].order.incarnation == 2);
    CHECK(rig.last.drains[0].order.deadline_ms == rig.config.times.drain_deadline.count());
    // Again: the order goes out once more, nothing else.
    CHECK(drain("node-2", 77).code == ec::none);
    CHECK(rig.happened().empty());
    CHECK(rig.last.delta.changed.empty());
    REQUIRE(rig.last.drains.size() == 1);
    CHECK(rig.last.drains[0].order.deadline_ms == 77);

    REQUIRE(rig.core->leave({node(2), 2, "drained"}, rig.now).code == ec::none);
    CHECK(rig.state(2) == "left");
    CHECK(rig.happened() == Strings{"2:left"});
    CHECK(rig.last.fenced.empty());
    CHECK(rig.core->leave({node(2), 2, "drained"}, rig.now).code == ec::none);
    CHECK(rig.join(2, 2).code == ec::session_lost);
    CHECK(rig.core->take_batch().empty());
    // Not kept out for good: the process may want to come anew.
    CHECK(rig.join(2).code == ec::none);
  }
  SECTION("by something that names nobody or several") {
    const auto nobody = drain("node-9");
    CHECK(nobody.code == ec::not_found);
    CHECK_THAT(nobody.text, Catch::Contains("node-2"));
    const auto several = drain("a000");
    CHECK(several.code == ec::conflict);
    CHECK_THAT(several.text, Catch::Contains("node-3"));
    CHECK(drain("node-2", -1).code == ec::invalid_argument);
    CHECK(rig.core->take_batch().empty());
  }
  SECTION("while suspect: the order counts, the suspicion stays") {
    rig.say(1, 2, Observed::suspect);
    CHECK(drain("node-2").code == ec::none);
    CHECK(rig.state(2) == "suspect");
    CHECK(rig.member(2)->draining);
    rig.say(1, 2, Observed::alive);
    CHECK(rig.state(2) == "draining");
  }
  SECTION("while joining") {
    rig.join(4);
    CHECK(drain("node-4").code == ec::none);
    CHECK(rig.state(4) == "joining");
    rig.sync(4);
    CHECK(rig.state(4) == "draining");
  }
  SECTION("the head last") {
    const auto reply = drain("node-1");
    CHECK(reply.code == ec::invalid_argument);
    CHECK_THAT(reply.text, Catch::Contains("the head leaves last"));
    rig.core->leave({node(2), 2, ""}, rig.now);
    rig.core->leave({node(3), 3, ""}, rig.now);
    CHECK(drain("node-1").code == ec::none);
    CHECK(rig.core->leave({node(1), 1, ""}, rig.now).code == ec::none);
    CHECK(rig.core->view().live().empty());
  }
  SECTION("a member that was declared down does not leave") {
    rig.say(1, 2, Observed::gone);
    CHECK(rig.core->leave({node(2), 2, ""}, rig.now).code == ec::session_lost);
    CHECK(rig.core->leave({node(2), 99, ""}, rig.now).code == ec::session_lost);
  }
  SECTION("the order is given again when the broker was started anew") {
    drain("node-2");
    rig.restart(7);
    rig.happened();
    CHECK(rig.join(2, 2).code == ec::none);
    CHECK(rig.happened() == Strings{"2:returned"});
    CHECK(rig.last.drains.size() == 1);
    CHECK(rig.state(2) == "draining");
  }
}

TEST_CASE("tombstones are of limited number, the oldest go", "[broker]") {
  Rig rig;
  rig.config.max_tombstones = 3;
  rig.start({});
  for (int i = 0; i < 5; ++i) {
    rig.up(2, 2);
  }
  rig.happened();
  CHECK(rig.core->tombstone_count() == 3);
  CHECK(rig.last.tombstones.size() == 4);
  REQUIRE(rig.last.forgotten.size() == 1);
  CHECK(rig.last.forgotten[0].incarnation == 1);
  // Forgotten, but not forgiven.
  CHECK(rig.join(2, 1).code == ec::session_lost);
  CHECK(rig.core->state().tombstones.front().incarnation == 2);
}

TEST_CASE("a new broker takes over what the last one left", "[broker]") {
  Rig rig;
  rig.up(1, 4);
  rig.join(5);
  rig.claim(2, "kept", true);
  rig.claim(1, "head's", true);
  rig.happened();
  const auto before = rig.core->state();
  rig.now = moment(60'000);
  rig.restart(9);
  CHECK(rig.core->info().term == 2);
  CHECK(rig.core->info().cluster_id == NodeId{7, 7});
  CHECK(rig.core->view().broker().broker == node(9));
  // The last head's process is gone, everybody else has time to come back.
  CHECK(rig.state(1) == "down");
  CHECK(rig.state(2) == "up");
  CHECK(rig.core->view().epoch() == before.epoch + 1);
  CHECK(rig.happened() == Strings{"9:cluster", "1:down"});
  CHECK(rig.last.events[0].seq == before.next_event);
  CHECK(rig.core->entry("kept")->node == node(2));
  CHECK_FALSE(rig.core->entry("head's")->node);

  CHECK(rig.join(9).incarnation == 6);
  CHECK(rig.join(2, 2).code == ec::none);  // by a join
  CHECK(rig.sync(3).code == ec::none);     // or a sync
  CHECK(rig.happened() == Strings{"9:joining", "2:returned", "3:returned"});
  rig.sync(9);
  CHECK(rig.join(2, 2).code == ec::none);
  CHECK(rig.happened() == Strings{"9:up"});

  rig.pass(rig.config.times.head_grace - 1ms);
  CHECK(rig.state(4) == "up");
  rig.pass(1ms);
  CHECK(rig.state(4) == "suspect");
  CHECK(rig.state(5) == "down");  // it was joining, and its time to confirm has run out as well
  CHECK_THAT(rig.reason(4), Catch::Contains("did not come back after the broker's restart"));
  CHECK(rig.state(2) == "up");
  SECTION("who comes back late is welcome") {
    CHECK(rig.sync(4).code == ec::none);
    CHECK(rig.state(4) == "up");
  }
  SECTION("who does not, goes down when another confirms") {
    rig.pass(rig.config.times.down_after);
    CHECK(rig.state(4) == "suspect");
    rig.say(3, 4, Observed::suspect);
    CHECK(rig.state(4) == "down");
  }
  SECTION("or at last alone") {
    rig.pass(rig.config.times.lone_down_after);
    CHECK(rig.state(4) == "down");
  }
}

TEST_CASE("a crash between the term and the first commit leaves no ghost of a head", "[broker]") {
  Rig rig;
  rig.up(1, 2);
  auto state = rig.core->state();
  // Term 2 was stored by node 8, which died before anything else was.
  state.term = 2;
  state.broker = node(8);
  rig.config.self = node(9);
  rig.config.address = Rig::address(9);
  rig.start(state);
  CHECK(rig.core->info().term == 3);
  CHECK(rig.state(1) == "down");
  CHECK(rig.state(2) == "up");
}

TEST_CASE("a broker that is started again in the same process keeps its node", "[broker]") {
  Rig rig;
  rig.up(1, 2);
  rig.start(rig.core->state());
  CHECK(rig.state(1) == "up");
  rig.pass(1h);
  CHECK(rig.state(1) == "up");
  CHECK(rig.join(1, 1).incarnation == 1);
}

TEST_CASE("a suspect at the restart has the grace time too", "[broker]") {
  Rig rig;
  rig.up(1, 2);
  rig.say(1, 2, Observed::suspect);
  rig.restart(9);
  rig.pass(rig.config.times.head_grace + rig.config.times.down_after - 1ms);
  CHECK(rig.state(2) == "suspect");
  SECTION("and returns") {
    CHECK(rig.sync(2).code == ec::none);
    CHECK(rig.state(2) == "up");
  }
  SECTION("or goes down") {
    rig.pass(1ms);
    CHECK(rig.state(2) == "down");
  }
}

TEST_CASE("a damaged state does not break the rules", "[broker]") {
  Rig rig;
  rig.up(1, 3);
  auto state = rig.core->state();
  state.next_incarnation = 1;
  state.epoch = 0;
  state.members[2].address = state.members[1].address;
  state.tombstones.push_back({node(1), 1, false, 0, "dead"});
  rig.start(state);
  CHECK(rig.core->view().epoch() > 6);
  CHECK(rig.core->view().live().size() == 1);
  CHECK(rig.join(4).incarnation == 4);
}
