// The promises of a link, over the simulated transport: nothing lost, nothing twice, in order, through
// any fault within the grace time; a clear end beyond it.
#include <catch2/catch.hpp>
#include <spdlog/spdlog.h>

#include "tests/support/link_pair.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace std::chrono_literals;
using troupe::test::is_sequence;
using troupe::test::SimLinkNode;

namespace {

constexpr auto control = static_cast<std::size_t>(Lane::control);
constexpr auto user = static_cast<std::size_t>(Lane::user);

const bool quiet = [] {
  spdlog::set_level(spdlog::level::off);  // faults are the point here
  return true;
}();

bool connect(SimWorld& world, SimLinkNode& from, SimLinkNode& to) {
  bool done = false;
  bool good = false;
  from.manager().connect(to.address(), [&](expected<NodeId> result) {
    done = true;
    good = result.has_value() && *result == to.id();
  });
  return world.run_until([&] { return done; }, 20s) && good;
}

}  // namespace

TEST_CASE("records of all sizes arrive once, in order and intact", "[link]") {
  SimWorld world{1};
  SimLinkNode a{world, 0};
  SimLinkNode b{world, 1};
  REQUIRE(connect(world, a, b));
  const std::vector<std::size_t> sizes{0,      1,      7,       8,         100,        4096,
                                       32'000, 32'768, 262'144, 1'000'003, 10'000'000, 3};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    REQUIRE(a.send(b.id(), Lane::user, i, sizes[i]) == SendResult::ok);
  }
  REQUIRE(
      world.run_until([&] { return b.from(a.id()).numbers[user].size() == sizes.size(); }, 60s));
  CHECK(is_sequence(b.from(a.id()).numbers[user], 0, sizes.size()));
  CHECK(b.from(a.id()).intact);
  REQUIRE(world.run_until([&] { return a.link(b.id())->queued_bytes(Lane::user) == 0; }, 1s));
}

TEST_CASE("a control record does not wait behind a large message", "[link]") {
  SimConfig config;
  config.path.bytes_per_second = 10'000'000;
  SimWorld world{2, config};
  SimLinkNode a{world, 0};
  SimLinkNode b{world, 1};
  REQUIRE(connect(world, a, b));
  REQUIRE(a.send(b.id(), Lane::user, 1, 20'000'000) == SendResult::ok);  // 2 s on this wire
  world.run_for(100ms);
  const auto start = world.elapsed();
  REQUIRE(a.send(b.id(), Lane::control, 2, 100) == SendResult::ok);
  REQUIRE(world.run_until([&] { return !b.from(a.id()).numbers[control].empty(); }, 5s));
  // One frame and what the stream has buffered: 2 x 256 kB at 10 MB/s.
  CHECK(world.elapsed() - start < 120ms);
  CHECK(b.from(a.id()).numbers[user].empty());
}

TEST_CASE("nodes that dial each other at once end with one link", "[link]") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SimConfig config;
    config.path.jitter = 200us;
    SimWorld world{seed, config};
    SimLinkNode a{world, 0};
    SimLinkNode b{world, 1};
    int done = 0;
    const auto count = [&](expected<NodeId> result) { done += result.has_value() ? 1 : 100; };
    a.manager().connect(b.address(), count);
    b.manager().connect(a.address(), count);
    INFO("seed " << seed);
    REQUIRE(world.run_until([&] { return done >= 2; }, 10s));
    CHECK(done == 2);
    world.run_for(2s);
    CHECK(a.manager().link_count() == 1);
    CHECK(b.manager().link_count() == 1);
    CHECK(a.link(b.id())->state() == LinkState::connected);
    CHECK(b.link(a.id())->state() == LinkState::connected);
    CHECK(world.connections() == 1);
    CHECK(a.downs().empty());
    CHECK(b.downs().empty());
    CHECK(a.ups().size() == 1);
  }
}

TEST_CASE("beyond the bound a sender is told would_block and when it may go on", "[link]") {
  LinkManagerConfig config;
  config.link.queue_bytes[user] = 100'000;
  config.link.window_bytes[user] = 600'000;
  SimWorld world{3};
  SimLinkNode a{world, 0, config};
  SimLinkNode b{world, 1, config};
  REQUIRE(connect(world, a, b));
  b.hold_credit = true;
  std::uint64_t sent = 0;
  // The receiver consumes nothing: window and queue fill up, then the sender is held back.
  for (int i = 0; i < 2000; ++i) {
    if (a.send(b.id(), Lane::user, sent, 1000) == SendResult::ok) {
      ++sent;
    }
    world.run_for(1ms);
  }
  CHECK(a.send(b.id(), Lane::user, sent, 1000) == SendResult::would_block);
  CHECK_FALSE(a.link(b.id())->writable(Lane::user));
  CHECK(a.link(b.id())->queued_bytes(Lane::user) <= 100'000 + 1032);
  CHECK(sent * 1032 <= 700'000 + 2 * 1032);
  CHECK(sent * 1032 >= 600'000);
  CHECK(a.send(b.id(), Lane::control, 9, 10) == SendResult::ok);
  REQUIRE(world.run_until([&] { return b.from(a.id()).numbers[control].size() == 1; }, 1s));
  CHECK(a.writable_calls == 0);
  b.hold_credit = false;
  b.held.clear();
  REQUIRE(world.run_until([&] { return a.writable_calls > 0; }, 1s));
  CHECK(a.link(b.id())->writable(Lane::user));
  REQUIRE(world.run_until([&] { return b.from(a.id()).numbers[user].size() == sent; }, 1s));
  CHECK(is_sequence(b.from(a.id()).numbers[user], 0, sent));
}

TEST_CASE("a message larger than window and queue passes an empty link", "[link]") {
  LinkManagerConfig config;
  config.link.queue_bytes[user] = 1'000'000;
  config.link.window_bytes[user] = 600'000;
  SimWorld world{4};
  SimLinkNode a{world, 0, config};
  SimLinkNode b{world, 1, config};
  REQUIRE(connect(world, a, b));
  for (std::uint64_t i = 0; i < 3; ++i) {
    REQUIRE(world.run_until([&] { return a.link(b.id())->queued_bytes(Lane::user) == 0; }, 20s));
    REQUIRE(a.send(b.id(), Lane::user, i, 5'000'000) == SendResult::ok);
    CHECK(a.send(b.id(), Lane::user, 99, 10) == SendResult::would_block);
    REQUIRE(world.run_until([&] { return b.from(a.id()).numbers[user].size() == i + 1; }, 20s));
  }
  CHECK(b.from(a.id()).intact);
}

TEST_CASE("a connection that comes back within the grace time loses nothing", "[link]") {
  SimWorld world{5};
  SimLinkNode a{world, 0};
  SimLinkNode b{world, 1};
  REQUIRE(connect(world, a, b));
  std::uint64_t sent = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 20; ++i) {
      REQUIRE(a.send(b.id(), Lane::user, sent++, 300 * static_cast<std::size_t>(round)) ==
              SendResult::ok);
    }
    world.run_for(200us);
    world.drop_connections(a.id(), b.id(), SimLoss::both);
    world.run_for(25ms);
  }
  REQUIRE(world.run_until([&] { return b.from(a.id()).numbers[user].size() >= sent; }, 10s));
  CHECK(is_sequence(b.from(a.id()).numbers[user], 0, sent));
  CHECK(b.from(a.id()).intact);
  CHECK(a.downs().empty());
  CHECK(a.link(b.id())->counters().connections > 5);
  CHECK(a.link(b.id())->counters().frames_replayed > 0);
}

TEST_CASE("a connection that one side alone has lost is remade", "[link]") {
  for (const auto loss : {SimLoss::first_only, SimLoss::second_only}) {
    for (const bool swap : {false, true}) {
      SimWorld world{6};
      SimLinkNode a{world, 0};
      SimLinkNode b{world, 1};
      REQUIRE(connect(world, swap ? b : a, swap ? a : b));
      world.drop_connections(a.id(), b.id(), loss);
      world.run_for(1s);
      REQUIRE(a.send(b.id(), Lane::user, 0, 10) == SendResult::ok);
      REQUIRE(b.send(a.id(), Lane::user, 0, 10) == SendResult::ok);
      REQUIRE(world.run_until(
          [&] {
            return b.from(a.id()).numbers[user].size() == 1 &&
                   a.from(b.id()).numbers[user].size() == 1;
          },
          30s));
      CHECK(a.downs().empty());
      CHECK(b.downs().empty());
    }
  }
}

TEST_CASE("beyond the grace time the link is down on both sides, with the reason", "[link]") {
  SimWorld world{7};
  SimLinkNode a{world, 0};
  SimLinkNode b{world, 1};
  REQUIRE(connect(world, a, b));
  world.partition(a.id(), b.id());
  world.drop_connections(a.id(), b.id(), SimLoss::both);
  REQUIRE(world.run_until([&] { return !a.downs().empty() && !b.downs().empty(); }, 30s));
  CHECK(a.downs()[0].code() == ec::node_unreachable);
  CHECK(a.downs()[0].text().find("could not be reached for 10") != std::string::npos);
  CHECK(a.send(b.id(), Lane::user, 1, 1) == SendResult::down);
  // After healing the two can link anew.
  world.heal(a.id(), b.id());
  REQUIRE(connect(world, a, b));
  CHECK(a.ups().size() == 2);
}

TEST_CASE("the death of the peer's process is noticed at once", "[link]") {
  for (const bool swap : {false, true}) {
    SimWorld world{8};
    SimLinkNode a{world, 0};
    SimLinkNode b{world, 1};
    REQUIRE(connect(world, swap ? b : a, swap ? a : b));
    const auto start = world.elapsed();
    world.crash(b.id(), SimCrash::process);
    REQUIRE(world.run_until([&] { return !a.downs().empty(); }, 5s));
    CHECK(world.elapsed() - start < 100ms);
    CHECK(a.downs()[0].code() == ec::node_unreachable);
  }
}

TEST_CASE("a node restarted at the same address ends the old link and gets a new one", "[link]") {
  SimWorld world{9};
  SimLinkNode a{world, 0};
  auto b = std::make_unique<SimLinkNode>(world, 1);
  REQUIRE(connect(world, a, *b));
  const auto address = b->address();
  world.crash(b->id(), SimCrash::process);
  // A new process at the same address before anybody noticed.
  auto& transport = world.make_transport(world.node_id(17), address);
  struct Silent final : LinkObserver {
    struct Handler final : LinkHandler {
      void on_record(const Record&, CreditToken) override {}
      void on_writable(Lane) override {}
      void on_state(LinkState) override {}
      void on_down(const error&) override {}
    };
    std::shared_ptr<LinkHandler> make_handler(const std::shared_ptr<Link>&) override {
      return std::make_shared<Handler>();
    }
    void on_link_up(const std::shared_ptr<Link>&, const Hello&) override {}
  } observer;
  LinkManagerConfig config;
  config.self = world.node_id(17);
  config.cluster = "test";
  config.address = address;
  auto manager = std::make_shared<LinkManager>(transport, config, observer);
  manager->start();
  REQUIRE(world.run_until([&] { return !a.downs().empty(); }, 5s));
  CHECK(a.downs()[0].code() == ec::node_unreachable);
  bool good = false;
  a.manager().connect(address, [&](expected<NodeId> peer) { good = peer && *peer == config.self; });
  REQUIRE(world.run_until([&] { return good; }, 5s));
  manager->stop({ec::closed, "test is over"});
}

TEST_CASE("cluster and version mismatches end with the reason on both sides", "[link]") {
  SimWorld world{10};
  SimLinkNode a{world, 0};
  LinkManagerConfig other;
  other.cluster = "other";
  SimLinkNode b{world, 1, other};
  LinkManagerConfig newer;
  newer.version_min = 90;
  newer.version_max = 91;
  SimLinkNode c{world, 2, newer};
  std::vector<error> errors;
  for (auto* node : {&b, &c}) {
    a.manager().connect(node->address(), [&](expected<NodeId> result) {
      REQUIRE_FALSE(result);
      errors.push_back(result.error());
    });
  }
  REQUIRE(world.run_until([&] { return errors.size() == 2; }, 5s));
  for (const auto& err : errors) {
    CHECK(err.code() == ec::handshake_refused);
  }
  CHECK(to_string(errors[0]) + to_string(errors[1]) != "");
  CHECK(a.ups().empty());
  CHECK(a.manager().link_count() == 0);
}

TEST_CASE("damaged bytes cost the connection and nothing else", "[link]") {
  SimWorld world{11};
  SimLinkNode a{world, 0};
  SimLinkNode b{world, 1};
  REQUIRE(connect(world, a, b));
  std::uint64_t sent = 0;
  for (int round = 0; round < 30; ++round) {
    for (int i = 0; i < 5; ++i) {
      REQUIRE(a.send(b.id(), Lane::user, sent++, i == 4 ? 100'000 : 50) == SendResult::ok);
    }
    world.corrupt_next(a.id(), b.id());
    world.run_for(10ms);
  }
  REQUIRE(world.run_until([&] { return b.from(a.id()).numbers[user].size() >= sent; }, 10s));
  CHECK(is_sequence(b.from(a.id()).numbers[user], 0, sent));
  CHECK(b.from(a.id()).intact);
  CHECK(a.link(b.id())->counters().connections > 10);
}
