#include <catch2/catch.hpp>

#include "net/heartbeat.hpp"
#include "net/heartbeat_frame.hpp"
#include "net/philox.hpp"
#include "net/sim.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace std::chrono_literals;

namespace {

struct Node {
  Node(SimWorld& world, std::uint32_t index, HeartbeatConfig config = {})
      : id(world.node_id(index)),
        address("n" + std::to_string(index) + ":1"),
        transport(world.make_transport(id, address)) {
    config.on_change = [this, &world](const NodeId& peer, bool connected, const error&) {
      world.log(id, (connected ? "hears " : "loses ") + short_string(peer));
      changes.push_back(connected);
    };
    config.on_verdict = [this, &world](const NodeId& peer, HeartbeatVerdict verdict,
                                       const std::string& reason) {
      world.log(id, short_string(peer) + " verdict " + reason);
      verdicts.push_back(verdict);
      reasons.push_back(reason);
    };
    beats = std::make_unique<Heartbeats>(transport, id, config);
    transport.on_accept([this](OpenStream open) { beats->accept(std::move(open)); });
  }
  HeartbeatStats of(const Node& other) const {
    const auto stats = beats->stats(other.id);
    REQUIRE(stats);
    return *stats;
  }
  NodeId id;
  std::string address;
  SimTransport& transport;
  std::vector<bool> changes;
  std::vector<HeartbeatVerdict> verdicts;
  std::vector<std::string> reasons;
  std::unique_ptr<Heartbeats> beats;
};

bool both_connected(const Node& a, const Node& b) {
  const auto there = a.beats->stats(b.id);
  const auto back = b.beats->stats(a.id);
  return there && there->connected && back && back->connected;
}

/// A peer that sends whatever a test wants.
struct Raw : StreamSink {
  MutableBuffer read_window() override { return window; }
  void on_bytes(std::size_t count) override { received += count; }
  void on_writable() override {}
  void on_closed(const error&) override { closed = true; }
  std::array<std::byte, 4096> window{};
  std::size_t received = 0;
  bool closed = false;
};

void send(Stream& stream, std::span<const std::byte> bytes) {
  const ConstBuffer buffer = bytes;
  stream.write({&buffer, 1});
}

}  // namespace

TEST_CASE("heartbeat: frames round-trip, and every flipped bit is noticed") {
  const HeartbeatFrame frame{HeartbeatKind::ping, 0x0123456789ABCDEFULL, -5, 77, -6, 9};
  const HeartbeatBytes bytes = encode_heartbeat(frame);
  const auto back = decode_heartbeat(bytes);
  REQUIRE(back);
  CHECK(back->kind == frame.kind);
  CHECK(back->sequence == frame.sequence);
  CHECK(back->time == frame.time);
  CHECK(back->answer_sequence == frame.answer_sequence);
  CHECK(back->answer_time == frame.answer_time);
  CHECK(back->answer_held == frame.answer_held);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    HeartbeatBytes flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    CHECK_FALSE(decode_heartbeat(flipped));
  }
}

TEST_CASE("heartbeat: round trips, phi, a partition raises it and healing lowers it") {
  SimConfig config;
  config.path.delay = 3ms;
  config.path.jitter = 2ms;
  SimWorld world(1, config);
  Node a(world, 0);
  Node b(world, 1);
  CHECK_FALSE(a.beats->stats(b.id));
  a.beats->watch(b.id, b.address);
  b.beats->watch(a.id, "");
  REQUIRE(world.run_until([&] { return both_connected(a, b); }, 5s));
  world.run_for(30s);
  const HeartbeatStats calm = a.of(b);
  CHECK(calm.connected);
  CHECK(calm.rtt_last >= 6ms);
  CHECK(calm.rtt_mean >= 6ms);
  CHECK(calm.rtt_p99 <= 10ms);
  CHECK(calm.rtt_max >= calm.rtt_p99);
  CHECK(calm.missed == 0);
  CHECK(calm.phi < 1.0);
  CHECK(calm.connects == 1);
  CHECK(calm.pings_sent >= 119);
  CHECK(b.of(a).pings_received >= 119);

  world.partition(a.id, b.id);
  double last = 0.0;
  for (int i = 0; i < 3; ++i) {
    world.run_for(500ms);
    CHECK(a.of(b).phi > last);
    last = a.of(b).phi;
  }
  CHECK(a.of(b).phi > 8.0);
  CHECK(b.of(a).phi > 8.0);
  CHECK(a.of(b).missed >= 5);
  world.run_for(20s);
  CHECK_FALSE(a.of(b).connected);
  CHECK_FALSE(b.of(a).connected);

  world.heal(a.id, b.id);
  REQUIRE(world.run_until([&] { return both_connected(a, b) && a.of(b).phi < 1.0; }, 10s));
  world.run_for(5s);
  CHECK(b.of(a).phi < 1.0);
  CHECK(a.of(b).connects == 2);
  CHECK(a.changes == std::vector<bool>{true, false, true});
}

TEST_CASE("heartbeat: a short partition does not cost the connection") {
  SimWorld world(2);
  Node a(world, 0);
  Node b(world, 1);
  a.beats->watch(b.id, b.address);
  REQUIRE(world.run_until([&] { return both_connected(a, b); }, 5s));
  world.run_for(10s);
  world.partition_one_way(b.id, a.id);
  world.run_for(1200ms);
  CHECK(a.of(b).phi > 8.0);
  CHECK(b.of(a).phi < 1.0);
  world.heal(a.id, b.id);
  world.run_for(500ms);
  CHECK(a.of(b).phi < 1.0);
  CHECK(a.of(b).connects == 1);
}

TEST_CASE("heartbeat: nodes that dial each other end with one connection") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimConfig config;
    config.path.jitter = 5ms;
    config.path.duplicate_dials = 0.3;
    SimWorld world(seed, config);
    Node a(world, 0);
    Node b(world, 1);
    a.beats->watch(b.id, b.address);
    world.run_for(std::chrono::microseconds{world.node_id(9).low() % 1000});
    b.beats->watch(a.id, a.address);
    world.run_for(10s);
    INFO("seed " << seed);
    CHECK(both_connected(a, b));
    CHECK(world.connections() == 1);
    const std::uint64_t hash = world.log_hash();
    world.run_for(10s);
    CHECK(world.connections() == 1);
    CHECK(world.log_hash() != hash);
  }
}

TEST_CASE("heartbeat: crossing dials settle without an interruption") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimConfig config;
    config.path.delay = 5ms;
    SimWorld world(seed, config);
    Node a(world, 0);
    Node b(world, 1);
    PhiloxStream random(seed, 78);
    world.after(std::chrono::microseconds{random.below(20'000)},
                [&] { a.beats->watch(b.id, b.address); });
    world.after(std::chrono::microseconds{random.below(20'000)},
                [&] { b.beats->watch(a.id, a.address); });
    world.run_for(10s);
    INFO("seed " << seed);
    CHECK(both_connected(a, b));
    CHECK(a.changes == std::vector<bool>{true});
    CHECK(b.changes == std::vector<bool>{true});
  }
}

TEST_CASE("heartbeat: random losses, the nodes find each other again, and a seed repeats") {
  const auto run = [](std::uint64_t seed) {
    SimConfig config;
    config.path.jitter = 1ms;
    SimWorld world(seed, config);
    Node a(world, 0);
    Node b(world, 1);
    a.beats->watch(b.id, b.address);
    b.beats->watch(a.id, a.address);
    PhiloxStream random(seed, 77);
    for (int i = 0; i < 30; ++i) {
      world.run_for(std::chrono::milliseconds{random.below(3000)});
      switch (random.below(5)) {
        case 0:
          world.drop_connections(a.id, b.id, SimLoss::both);
          break;
        case 1:
          world.drop_connections(a.id, b.id, SimLoss::first_only);
          break;
        case 2:
          world.drop_connections(a.id, b.id, SimLoss::second_only);
          break;
        case 3:
          world.corrupt_next(a.id, b.id);
          break;
        default:
          world.partition_one_way(a.id, b.id);
          world.after(std::chrono::milliseconds{random.below(5000)},
                      [&world, &a, &b] { world.heal(a.id, b.id); });
      }
    }
    world.run_for(20s);
    CHECK(both_connected(a, b));
    CHECK(a.of(b).phi < 1.0);
    CHECK(world.connections() == 1);
    return world.log_hash();
  };
  for (std::uint64_t seed = 100; seed < 120; ++seed) {
    INFO("seed " << seed);
    CHECK(run(seed) == run(seed));
  }
}

TEST_CASE("heartbeat: a crash is heard at once, a new node at the address is not the old one") {
  SimWorld world(4);
  Node a(world, 0);
  Node b(world, 1);
  a.beats->watch(b.id, b.address);
  REQUIRE(world.run_until([&] { return both_connected(a, b); }, 5s));
  world.crash(b.id);
  CHECK(world.run_until([&] { return !a.of(b).connected; }, 10ms));
  SimTransport& other = world.make_transport(world.node_id(7), b.address);
  std::vector<std::shared_ptr<Raw>> sinks;
  other.on_accept([&](OpenStream open) {
    sinks.push_back(std::make_shared<Raw>());
    open.stream->start(sinks.back());
  });
  world.run_for(20s);
  CHECK(sinks.size() > 2);
  CHECK(sinks.size() < 30);
  CHECK_FALSE(a.of(b).connected);
  CHECK(a.of(b).phi > 100.0);
  a.beats->forget(b.id);
  world.run_for(10s);
  CHECK_FALSE(a.beats->stats(b.id));
  CHECK(world.connections() == 0);
}

TEST_CASE("heartbeat: strangers are refused, stop closes everything") {
  SimWorld world(5);
  HeartbeatConfig closed;
  closed.allow = [](const NodeId&) { return false; };
  Node a(world, 0);
  Node b(world, 1, closed);
  a.beats->watch(b.id, b.address);
  world.run_for(5s);
  CHECK_FALSE(a.of(b).connected);
  CHECK_FALSE(b.beats->stats(a.id));
  b.beats->watch(a.id, "");
  REQUIRE(world.run_until([&] { return both_connected(a, b); }, 20s));
  a.beats->stop();
  world.run_for(1s);
  CHECK(a.beats->peers().empty());
  CHECK_FALSE(b.of(a).connected);
  CHECK(world.connections() == 0);
  a.beats.reset();
  world.run_for(1s);
}

TEST_CASE("heartbeat: what breaks the protocol loses its connection and nothing else") {
  SimWorld world(6);
  Node a(world, 0);
  Node good(world, 1);
  good.beats->watch(a.id, a.address);
  REQUIRE(world.run_until([&] { return both_connected(a, good); }, 5s));
  SimTransport& bad = world.make_transport(world.node_id(66), "bad:1");

  std::vector<std::vector<std::byte>> attacks;
  const auto frame = [](HeartbeatKind kind, std::uint64_t sequence) {
    const HeartbeatBytes bytes = encode_heartbeat({kind, sequence, 5});
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  attacks.emplace_back(64, std::byte{0x41});
  attacks.push_back(frame(HeartbeatKind::ping, 2));
  attacks.push_back(frame(HeartbeatKind::pong, 1));
  attacks.push_back(frame(HeartbeatKind::pong, ~std::uint64_t{0}));
  for (const HeartbeatFrame& lie :
       {HeartbeatFrame{HeartbeatKind::pong, 0, 0, 1, 5, 0}, {HeartbeatKind::ping, 1, 5, 9, 5, 0}}) {
    const HeartbeatBytes bytes = encode_heartbeat(lie);
    attacks.emplace_back(bytes.begin(), bytes.end());
  }
  std::vector<std::byte> flood;
  for (std::uint64_t i = 1; i < 5000; ++i) {
    const auto one = frame(HeartbeatKind::ping, i);
    flood.insert(flood.end(), one.begin(), one.end());
  }
  attacks.push_back(flood);
  PhiloxStream random(6);
  for (int i = 0; i < 200; ++i) {
    std::vector<std::byte> junk(32 + random.below(500));
    for (std::byte& b : junk) {
      b = static_cast<std::byte>(random() & 0xFFU);
    }
    attacks.push_back(junk);
  }
  for (std::size_t i = 0; i < attacks.size(); ++i) {
    auto sink = std::make_shared<Raw>();
    std::shared_ptr<Stream> stream;
    bad.dial(a.address, StreamPurpose::heartbeat, 1s, [&](expected<OpenStream> open) {
      REQUIRE(open);
      stream = open->stream;
      stream->start(sink);
      send(*stream, attacks[i]);
    });
    INFO("attack " << i);
    CHECK(world.run_until([&] { return sink->closed; }, 1s));
  }
  CHECK(a.beats->malformed() == attacks.size());
  // Connects and says nothing.
  auto silent = std::make_shared<Raw>();
  bad.dial(a.address, StreamPurpose::heartbeat, 1s,
           [&](expected<OpenStream> open) { open->stream->start(silent); });
  CHECK(world.run_until([&] { return silent->closed; }, 5s));
  CHECK(both_connected(a, good));
  CHECK(a.of(good).connects == 1);
  CHECK_FALSE(a.beats->stats(bad.id()));
}

TEST_CASE("heartbeat: a peer that stands still is noticed, and comes back") {
  SimWorld world(7);
  Node a(world, 0);
  Node b(world, 1);
  a.beats->watch(b.id, b.address);
  REQUIRE(world.run_until([&] { return both_connected(a, b); }, 5s));
  world.run_for(10s);
  world.pause(b.id);
  world.run_for(1s);
  CHECK(a.of(b).phi > 8.0);
  world.run_for(60s);
  CHECK_FALSE(a.of(b).connected);
  world.resume(b.id);
  CHECK(world.run_until([&] { return both_connected(a, b) && a.of(b).phi < 1.0; }, 20s));
}
