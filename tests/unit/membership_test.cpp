#include "supervision/membership.hpp"

#include <catch2/catch.hpp>

#include <map>
#include <set>

#include <caf/message.hpp>

#include "net/message_codec.hpp"
#include "net/philox.hpp"
#include "supervision/membership_messages.hpp"
#include "tests/support/process.hpp"

using namespace troupe;

namespace {

NodeId node(std::uint64_t n) { return {n << 56U, n}; }

Member make(std::uint64_t n, std::uint64_t epoch, MemberState state = MemberState::up) {
  Member member;
  member.id = node(n);
  member.incarnation = n;
  member.name = "node-" + std::to_string(n);
  member.address = "host:" + std::to_string(n);
  member.state = state;
  member.epoch = epoch;
  return member;
}

View view_of(std::initializer_list<Member> members) {
  View view;
  for (const auto& member : members) {
    view.put(member);
  }
  return view;
}

}  // namespace

TEST_CASE("states have names and names have states", "[membership]") {
  for (const auto state : {MemberState::joining, MemberState::up, MemberState::suspect,
                           MemberState::down, MemberState::draining, MemberState::left}) {
    CHECK(member_state_from_string(to_string(state)) == state);
    CHECK(is_live(state) == (state != MemberState::down && state != MemberState::left));
  }
  CHECK_FALSE(member_state_from_string("Up").has_value());
  CHECK(to_string(static_cast<MemberState>(99)) == "unknown");
}

TEST_CASE("a view takes deltas that fit and says what does not", "[membership]") {
  View view{{{"c", {1, 1}, 3, node(1), "host:1"}, 10, {make(1, 4), make(2, 10)}}};
  const auto delta = [](std::uint64_t term, std::uint64_t base, std::uint64_t epoch) {
    return ViewDelta{term, base, epoch, {make(3, epoch)}};
  };
  struct Row {
    const char* what;
    ViewDelta delta;
    View::Applied applied;
  };
  const auto row = GENERATE_COPY(
      Row{"the next one", delta(3, 10, 11), View::Applied::yes},
      Row{"one that begins before", delta(3, 4, 12), View::Applied::yes},
      Row{"nothing new", delta(3, 10, 10), View::Applied::old},
      Row{"an earlier one", delta(3, 2, 9), View::Applied::old},
      Row{"a hole", delta(3, 11, 12), View::Applied::gap},
      Row{"an earlier broker", delta(2, 10, 11), View::Applied::old},
      Row{"a later broker: a snapshot must name it", delta(4, 10, 11), View::Applied::gap});
  INFO(row.what);
  const auto before = view.hash();
  CHECK(view.apply(row.delta) == row.applied);
  const bool applied = row.applied == View::Applied::yes;
  CHECK((view.find(node(3)) != nullptr) == applied);
  CHECK(view.epoch() == (applied ? row.delta.epoch : 10));
  CHECK((view.hash() != before) == applied);
}

TEST_CASE("a delta does not bring back what the view has forgotten", "[membership]") {
  View view{{{}, 10, {make(1, 4)}}};
  const ViewDelta overlap{1, 3, 11, {make(2, 5, MemberState::down), make(3, 11)}};
  CHECK(view.apply(overlap) == View::Applied::yes);
  CHECK(view.ended().empty());
  CHECK(view.find(node(3)) != nullptr);
}

TEST_CASE("a view keeps the last ended members, oldest first", "[membership]") {
  View view;
  for (std::uint64_t n = 1; n <= View::kept_ended + 6; ++n) {
    view.put(make(n, n));
    view.put(make(n, 1'000 + n, MemberState::left));
  }
  CHECK(view.live().empty());
  REQUIRE(view.ended().size() == View::kept_ended);
  CHECK(view.ended().front().incarnation == 7);
  CHECK(view.ended().back().incarnation == View::kept_ended + 6);

  // Through a snapshot it comes out the same.
  const View copy{view.snapshot()};
  REQUIRE(copy.ended().size() == View::kept_ended);
  CHECK(copy.ended().front().incarnation == 7);
  CHECK(copy.hash() == view.hash());
}

TEST_CASE("the end of an old incarnation does not touch the new one", "[membership]") {
  View view;
  auto old = make(1, 1);
  auto young = make(1, 3);
  young.incarnation = 9;
  view.put(young);
  old.state = MemberState::down;
  old.epoch = 2;
  view.put(old);
  REQUIRE(view.find(node(1)) != nullptr);
  CHECK(view.find(node(1))->incarnation == 9);
  CHECK(view.find(node(1), 9) != nullptr);
  CHECK(view.find(node(1), 1) == nullptr);
  CHECK(view.ended().size() == 1);
}

TEST_CASE("members are found by name, address and start of the id", "[membership]") {
  auto twin = make(3, 3);
  twin.name = "node-2";
  const auto view = view_of({make(0xAB, 1), make(2, 2), twin, make(4, 4, MemberState::left)});
  CHECK(view.match("node-171").size() == 1);
  CHECK(view.match("host:2").size() == 1);
  CHECK(view.match("node-2").size() == 2);
  CHECK(view.match("ab00").size() == 1);
  CHECK(view.match("AB00").size() == 1);
  CHECK(view.match(to_string(node(2))).size() == 1);
  CHECK(view.match("ab0").empty());
  CHECK(view.match("").empty());
  CHECK(view.match("node-4").empty());
}

TEST_CASE("every field of a live member is in the hash", "[membership]") {
  const auto base = make(1, 1);
  const auto hash = view_of({base}).hash();
  std::set<std::uint64_t> hashes{hash};
  std::size_t changes = 1;
  const auto changed = [&](auto&& change) {
    auto member = base;
    change(member);
    hashes.insert(view_of({member}).hash());
    ++changes;
  };
  changed([](Member& m) { m.id = node(2); });
  changed([](Member& m) { m.incarnation = 5; });
  changed([](Member& m) { m.name = "x"; });
  changed([](Member& m) { m.address = "x"; });
  changed([](Member& m) { m.host = "x"; });
  changed([](Member& m) { m.build = "x"; });
  changed([](Member& m) { m.pid = 5; });
  changed([](Member& m) { m.head = true; });
  changed([](Member& m) { m.resources["cpu"] = 1; });
  changed([](Member& m) { m.labels["cpu"] = "1"; });
  changed([](Member& m) { m.state = MemberState::suspect; });
  changed([](Member& m) { m.draining = true; });
  changed([](Member& m) { m.reason = "x"; });
  changed([](Member& m) { m.since_ms = 5; });
  changed([](Member& m) { m.epoch = 5; });
  CHECK(hashes.size() == changes);
  auto later = view_of({base});
  later.set_epoch(9);
  CHECK(later.hash() != hash);
  CHECK(view_of({base}).hash() == hash);
}

TEST_CASE("the next healthy members on the ring observe", "[membership]") {
  auto head = make(3, 3);
  head.head = true;
  const auto view = view_of({make(1, 1), make(2, 2, MemberState::suspect), head,
                             make(4, 4, MemberState::draining), make(5, 5, MemberState::joining)});
  const auto ids = [](std::initializer_list<std::uint64_t> numbers) {
    std::vector<NodeId> result;
    for (const auto n : numbers) {
      result.push_back(node(n));
    }
    return result;
  };
  CHECK(observers_of(view, node(1), 2) == ids({4, 5}));
  CHECK(observers_of(view, node(3), 2) == ids({4, 5}));
  CHECK(observers_of(view, node(4), 2) == ids({5, 1}));
  CHECK(observers_of(view, node(5), 9) == ids({1, 4}));
  CHECK(observers_of(view, node(9), 2).empty());
  CHECK(subjects_of(view, node(1), 1) == ids({5}));
  CHECK(subjects_of(view, node(4), 1) == ids({1, 2, 3}));
  CHECK(subjects_of(view, node(2), 2).empty());  // not healthy
  CHECK(subjects_of(view, node(3), 2).empty());  // the head has no place on the ring
  CHECK(subjects_of(view, node(5), 0).empty());
}

TEST_CASE("observers and subjects are the same relation", "[membership]") {
  const auto seed = test::test_seed("observers and subjects");
  PhiloxStream random{seed};
  for (int round = 0; round < 300; ++round) {
    View view;
    const auto size = 1 + random.below(9);
    for (std::uint64_t n = 1; n <= size; ++n) {
      auto member = make(n, n, static_cast<MemberState>(random.below(6)));
      member.head = n == 1;
      view.put(member);
    }
    const auto count = static_cast<std::size_t>(random.below(4));
    std::set<std::pair<NodeId, NodeId>> by_subject;
    std::set<std::pair<NodeId, NodeId>> by_observer;
    for (std::uint64_t n = 1; n <= size; ++n) {
      for (const auto& observer : observers_of(view, node(n), count)) {
        by_subject.emplace(observer, node(n));
      }
      for (const auto& subject : subjects_of(view, node(n), count)) {
        by_observer.emplace(node(n), subject);
      }
    }
    REQUIRE(by_subject == by_observer);
  }
}

TEST_CASE("every message of the membership crosses the wire", "[membership]") {
  net::TypeRegistry registry;
  REQUIRE(add_membership_types(registry));
  REQUIRE(add_membership_types(registry));  // twice is fine
  CHECK(registry.find_name("troupe.m.join_request") != nullptr);
  CHECK(registry.find_name("troupe.m.who_is_broker") != nullptr);

  auto member = make(1, 1);
  member.resources["cpu"] = 2.5;
  member.labels["zone"] = "a";
  JoinReply reply;
  reply.code = ec::session_lost;
  reply.text = "fenced";
  reply.snapshot = {{"c", {1, 2}, 3, node(1), "host:1"}, 7, {member}};
  reply.times.lease = Milliseconds{1234};
  const auto message = caf::make_message(
      reply, SyncReply{ec::none, "", {1, 2, 3, {member}}, {reply.snapshot}},
      Observation{node(1), 1, node(2), 2, Observed::gone, "refused"},
      ClaimReply{ec::would_block, "held", 5, {"a/b", node(1), 1, "host:1", true, 4, 9}},
      WhoIsBroker{node(1)}, JoinRequest{member, {}, 0, 0, 5}, SyncRequest{}, Fenced{},
      DrainRequest{}, CommandReply{}, DrainOrder{}, LeaveRequest{}, EventsRequest{},
      EventsReply{{MemberEvent{}}}, ClaimRequest{}, ReleaseRequest{}, ResolveRequest{},
      DirectoryUpdate{1, {DirectoryEntry{}}}, BrokerInfo{}, MembershipTimes{});
  net::EncodedBody body;
  REQUIRE_FALSE(net::encode_message(registry, message, nullptr, body));
  const auto bytes = body.flatten();
  const auto decoded = net::decode_message(registry, bytes, nullptr, nullptr);
  REQUIRE(decoded);
  REQUIRE(decoded->size() == message.size());
  const auto& received = decoded->get_as<JoinReply>(0);
  CHECK(received.code == ec::session_lost);
  CHECK(received.times.lease == Milliseconds{1234});
  CHECK(View{received.snapshot}.hash() == View{reply.snapshot}.hash());
  CHECK(decoded->get_as<Observation>(2).state == Observed::gone);
  CHECK(decoded->get_as<ClaimReply>(3).entry.generation == 4);
}
