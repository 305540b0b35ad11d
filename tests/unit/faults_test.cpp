#include <catch2/catch.hpp>

#include "net/faults.hpp"
#include "net/philox.hpp"
#include "net/sim.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace std::chrono_literals;

namespace {

struct Sink : StreamSink {
  MutableBuffer read_window() override {
    REQUIRE_FALSE(closed);
    return window;
  }
  void on_bytes(std::size_t count) override {
    REQUIRE_FALSE(closed);
    received.insert(received.end(), window.begin(),
                    window.begin() + static_cast<std::ptrdiff_t>(count));
  }
  void on_writable() override {
    REQUIRE_FALSE(closed);
    if (pump) {
      pump();
    }
  }
  void on_closed(const error& why) override {
    REQUIRE_FALSE(closed);
    closed = true;
    reason = why;
  }
  std::vector<std::byte> window = std::vector<std::byte>(700);
  std::vector<std::byte> received;
  std::function<void()> pump;
  bool closed = false;
  error reason;
};

std::vector<std::byte> pattern(std::size_t count) {
  PhiloxStream random(3);
  std::vector<std::byte> result(count);
  for (std::byte& b : result) {
    b = static_cast<std::byte>(random() & 0xFFU);
  }
  return result;
}

/// Node a has the injector, node b is plain.
struct Fixture {
  explicit Fixture(std::uint64_t seed = 1, FaultLimits limits = {})
      : world(seed),
        a(world.make_transport(world.node_id(0), "a:1")),
        b(world.make_transport(world.node_id(1), "b:1")),
        injector(std::make_shared<FaultInjector>(seed, limits)),
        faulty(a, injector) {
    b.on_accept([this](OpenStream open) { take(right, *there, std::move(open)); });
    faulty.on_accept([this](OpenStream open) { take(left, *here, std::move(open)); });
  }

  void take(std::shared_ptr<Stream>& stream, Sink& sink, OpenStream open) {
    stream = open.stream;
    stream->start(std::shared_ptr<StreamSink>(sink_owner, &sink));
  }

  error dial() {
    std::optional<error> result;
    faulty.dial("b:1", StreamPurpose::link, 5s, [&](expected<OpenStream> open) {
      result = open ? error{} : open.error();
      if (open) {
        take(left, *here, std::move(*open));
      }
    });
    REQUIRE_FALSE(result);
    REQUIRE(world.run_until([&] { return result.has_value(); }, 5s));
    return *result;
  }

  static std::size_t write(Stream& stream, std::span<const std::byte> bytes) {
    const ConstBuffer buffer = bytes;
    return stream.write({&buffer, 1});
  }

  /// Sends everything from a to b, as the stream takes it.
  void pump(const std::vector<std::byte>& data) {
    auto sent = std::make_shared<std::size_t>(0);
    here->pump = [this, &data, sent] {
      while (*sent < data.size()) {
        const std::size_t size = std::min<std::size_t>(50'000, data.size() - *sent);
        const std::size_t taken = write(*left, {data.data() + *sent, size});
        *sent += taken;
        if (taken < size) {
          return;
        }
      }
    };
    here->pump();
  }

  SimWorld world;
  SimTransport& a;
  SimTransport& b;
  std::shared_ptr<FaultInjector> injector;
  FaultyTransport faulty;
  std::shared_ptr<int> sink_owner = std::make_shared<int>(0);
  std::shared_ptr<Sink> here = std::make_shared<Sink>();
  std::shared_ptr<Sink> there = std::make_shared<Sink>();
  std::shared_ptr<Stream> left;
  std::shared_ptr<Stream> right;
};

}  // namespace

TEST_CASE("faults: without a plan everything passes, in both directions and both ways of opening") {
  Fixture f;
  REQUIRE_FALSE(f.dial());
  const auto data = pattern(1'000'000);
  f.pump(data);
  f.write(*f.right, pattern(1000));
  REQUIRE(f.world.run_until([&] { return f.there->received.size() == data.size(); }, 10s));
  CHECK(f.there->received == data);
  CHECK(f.here->received == pattern(1000));
  CHECK(f.left->peer_address() == "b:1");
  f.right->close(error{ec::closed, "b has finished"});
  f.world.run_for(1s);
  CHECK(f.here->closed);

  f.here = std::make_shared<Sink>();
  f.there = std::make_shared<Sink>();
  f.b.dial("a:1", StreamPurpose::link, 1s, [&](expected<OpenStream> open) {
    REQUIRE(open);
    f.take(f.right, *f.there, std::move(*open));
  });
  f.world.run_for(1s);
  f.write(*f.left, pattern(10));
  f.world.run_for(1s);
  CHECK(f.there->received == pattern(10));
  CHECK(f.injector->counters().wrapped == 2);
  f.left->close(error{ec::closed, "a has finished"});
  f.world.run_for(1s);
  CHECK(f.here->reason.text() == "a has finished");
  CHECK(f.there->closed);
}

TEST_CASE("faults: delay holds bytes in both directions, and the end comes after them") {
  Fixture f;
  REQUIRE_FALSE(f.dial());
  FaultPlan plan;
  plan.delay_in = 200ms;
  plan.delay_out = 500ms;
  f.injector->set(f.b.id(), plan);
  f.write(*f.left, pattern(100));
  f.write(*f.right, pattern(3000));
  f.right->close(error{ec::closed, "done"});
  f.world.run_for(190ms);
  CHECK(f.here->received.empty());
  CHECK_FALSE(f.here->closed);
  f.world.run_for(20ms);
  CHECK(f.here->received == pattern(3000));
  CHECK(f.here->closed);

  Fixture g;
  REQUIRE_FALSE(g.dial());
  g.injector->set(g.b.id(), plan);
  const auto data = pattern(3'000'000);
  g.pump(data);
  g.world.run_for(490ms);
  CHECK(g.there->received.empty());
  REQUIRE(g.world.run_until([&] { return g.there->received.size() == data.size(); }, 10s));
  CHECK(g.there->received == data);
}

TEST_CASE("faults: a partition holds bytes and dials, healing releases them in order") {
  Fixture f;
  REQUIRE_FALSE(f.dial());
  f.injector->partition(f.b.id(), FaultSide::both);
  CHECK(f.injector->plan(f.b.id()).partition_in);
  const auto data = pattern(2'000'000);
  f.pump(data);
  f.write(*f.right, pattern(5000));
  f.world.run_for(5s);
  CHECK(f.there->received.empty());
  CHECK(f.here->received.empty());
  CHECK(f.injector->check_dial("b:1").error() == ec::timeout);
  CHECK(f.injector->check_dial("elsewhere:1"));
  CHECK(f.dial() == ec::timeout);
  f.injector->heal(f.b.id());
  REQUIRE(f.world.run_until([&] { return f.there->received.size() == data.size(); }, 10s));
  CHECK(f.there->received == data);
  CHECK(f.here->received == pattern(5000));

  // What is sent right after healing does not overtake what was held.
  f.there->received.clear();
  const auto three = pattern(300);
  f.injector->partition(f.b.id(), FaultSide::out);
  f.write(*f.left, {three.data(), 100});
  f.world.run_for(1s);
  f.injector->heal(f.b.id());
  f.write(*f.left, {three.data() + 100, 200});
  f.world.run_for(1s);
  CHECK(f.there->received == three);

  // Only one direction.
  f.there->received.clear();
  f.here->received.clear();
  f.injector->partition(f.b.id(), FaultSide::in);
  f.write(*f.left, pattern(10));
  f.write(*f.right, pattern(10));
  f.world.run_for(1s);
  CHECK(f.there->received == pattern(10));
  CHECK(f.here->received.empty());
  f.injector->clear();
  f.world.run_for(1s);
  CHECK(f.here->received == pattern(10));
}

TEST_CASE("faults: a partition that lasts ends the stream, also when the peer has left meanwhile") {
  for (const bool peer_leaves : {false, true}) {
    Fixture f;
    REQUIRE_FALSE(f.dial());
    f.injector->partition(f.b.id(), FaultSide::both);
    if (peer_leaves) {
      f.right->close(error{ec::closed, "done"});
    } else {
      f.write(*f.left, pattern(10));
    }
    f.world.run_for(19s);
    CHECK_FALSE(f.here->closed);
    f.world.run_for(2s);
    CHECK(f.here->closed);
    CHECK(f.here->reason == ec::timeout);
  }
  // Closing does not wait for the partition.
  Fixture f;
  REQUIRE_FALSE(f.dial());
  f.injector->partition(f.b.id(), FaultSide::both);
  f.right->close(error{ec::closed, "done"});
  f.world.run_for(1s);
  CHECK_FALSE(f.here->closed);
  f.left->close(error{ec::closed, "enough"});
  f.world.run_for(1ms);
  CHECK(f.here->closed);
}

TEST_CASE("faults: held bytes are limited") {
  FaultLimits limits;
  limits.held_in = 100'000;
  limits.held_out = 50'000;
  Fixture f(1, limits);
  REQUIRE_FALSE(f.dial());
  f.injector->partition(f.b.id(), FaultSide::both);
  CHECK(f.write(*f.left, pattern(80'000)) == 50'000);
  CHECK(f.write(*f.left, pattern(10)) == 0);
  f.write(*f.right, pattern(90'000));
  f.world.run_for(1s);
  CHECK_FALSE(f.here->closed);
  f.write(*f.right, pattern(20'000));
  f.world.run_for(1s);
  CHECK(f.here->reason == ec::limit_exceeded);
}

TEST_CASE("faults: drops on demand and at seeded distances") {
  Fixture f;
  REQUIRE_FALSE(f.dial());
  CHECK(f.injector->drop(f.b.id()) == 1);
  f.world.run_for(1s);
  CHECK(f.here->reason == ec::node_unreachable);
  CHECK(f.there->closed);

  const auto run = [](std::uint64_t seed) {
    Fixture g(seed);
    FaultPlan plan;
    plan.drop_every = 100'000;
    g.injector->set(g.b.id(), plan);
    std::vector<std::size_t> sizes;
    for (int i = 0; i < 10; ++i) {
      g.here = std::make_shared<Sink>();
      g.there = std::make_shared<Sink>();
      REQUIRE_FALSE(g.dial());
      const auto data = pattern(300'000);
      g.pump(data);
      REQUIRE(g.world.run_until([&] { return g.here->closed && g.there->closed; }, 10s));
      sizes.push_back(g.there->received.size());
    }
    CHECK(g.injector->counters().dropped == 10);
    return sizes;
  };
  const auto first = run(5);
  CHECK(first == run(5));
  CHECK(first != run(6));
}

TEST_CASE("faults: throttle") {
  Fixture f;
  REQUIRE_FALSE(f.dial());
  FaultPlan plan;
  plan.bytes_per_second = 100'000;
  f.injector->set(f.b.id(), plan);
  const auto data = pattern(300'000);
  f.pump(data);
  f.world.run_for(1500ms);
  CHECK(f.there->received.size() > 130'000);
  CHECK(f.there->received.size() <= 150'000);
  f.world.run_for(1600ms);
  CHECK(f.there->received == data);
}

TEST_CASE("faults: corruption flips the bits it counts") {
  Fixture f;
  REQUIRE_FALSE(f.dial());
  const auto flipped = [&](const std::vector<std::byte>& sent) {
    REQUIRE(f.here->received.size() == sent.size());
    unsigned bits = 0;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      bits += static_cast<unsigned>(
          __builtin_popcount(std::to_integer<unsigned>(sent[i] ^ f.here->received[i])));
    }
    f.here->received.clear();
    return bits;
  };
  const auto data = pattern(100'000);
  f.injector->corrupt_next(f.b.id());
  f.write(*f.right, data);
  f.world.run_for(1s);
  CHECK(flipped(data) == 1);
  FaultPlan plan;
  plan.corrupt_every = 1000;
  f.injector->set(f.b.id(), plan);
  f.write(*f.right, data);
  f.world.run_for(1s);
  const unsigned bits = flipped(data);
  CHECK(bits > 60);
  CHECK(bits < 140);
  CHECK(f.injector->counters().corrupted == bits + 1);
}

TEST_CASE("faults: refused dials") {
  Fixture f;
  FaultPlan plan;
  plan.refuse_dials = true;
  f.injector->set(f.b.id(), plan);
  CHECK(f.dial() == ec::refused);
  CHECK(f.dial() == ec::refused);
  f.injector->set(f.b.id(), {});
  CHECK_FALSE(f.dial());
  CHECK(f.injector->counters().refused_dials == 2);
}
