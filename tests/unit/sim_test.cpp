#include <catch2/catch.hpp>

#include "net/philox.hpp"
#include "net/sim.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace std::chrono_literals;

namespace {

/// Collects what arrives and checks the calling contract.
struct Collector : StreamSink {
  explicit Collector(std::size_t window_size = 1000) : window(window_size) {}

  MutableBuffer read_window() override {
    check();
    return window;
  }
  void on_bytes(std::size_t count) override {
    check();
    received.insert(received.end(), window.begin(),
                    window.begin() + static_cast<std::ptrdiff_t>(count));
    ++segments;
  }
  void on_writable() override {
    check();
    ++writable;
    if (pump) {
      pump();
    }
  }
  void on_closed(const error& why) override {
    check();
    closed = true;
    reason = why;
    if (executor != nullptr) {
      closed_at = executor->now();
    }
  }
  void check() const {
    REQUIRE_FALSE(closed);
    REQUIRE_FALSE(inside);
    if (executor != nullptr) {
      REQUIRE(executor->on_thread());
    }
  }

  std::vector<std::byte> window;
  std::vector<std::byte> received;
  std::size_t segments = 0;
  std::size_t writable = 0;
  std::function<void()> pump;
  Executor* executor = nullptr;
  bool inside = false;
  bool closed = false;
  TimePoint closed_at{};
  error reason;
};

std::vector<std::byte> random_bytes(std::size_t count, std::uint32_t index) {
  PhiloxStream random(5, 9, index);
  std::vector<std::byte> result(count);
  for (std::byte& b : result) {
    b = static_cast<std::byte>(random() & 0xFFU);
  }
  return result;
}

/// Two nodes and one stream between them.
struct Pair {
  explicit Pair(std::uint64_t seed, SimConfig config = {})
      : world(seed, config),
        a(world.make_transport(world.node_id(0), "a:1")),
        b(world.make_transport(world.node_id(1), "b:1")) {
    b.on_accept([this](OpenStream open) { accepted.push_back(std::move(open)); });
  }

  void connect() {
    expected<OpenStream> result = dial(5s);
    REQUIRE(result);
    REQUIRE(result->peer == b.id());
    REQUIRE(accepted.back().peer == a.id());
    left = result->stream;
    right = accepted.back().stream;
    left_sink->executor = &a.executor(StreamPurpose::link);
    right_sink->executor = &b.executor(StreamPurpose::link);
    left->start(left_sink);
    right->start(right_sink);
  }

  expected<OpenStream> dial(Duration timeout, const std::string& address = "b:1") {
    expected<OpenStream> result = fail(ec::none, "not called");
    bool done = false;
    a.dial(address, StreamPurpose::link, timeout, [&](expected<OpenStream> open) {
      REQUIRE_FALSE(done);
      REQUIRE(a.executor(StreamPurpose::link).on_thread());
      done = true;
      result = std::move(open);
    });
    REQUIRE_FALSE(done);
    REQUIRE(world.run_until([&] { return done; }, timeout));
    return result;
  }

  std::size_t write(std::size_t count) {
    const auto bytes = random_bytes(count, 77);
    const ConstBuffer buffer{bytes};
    return left->write({&buffer, 1});
  }

  SimWorld world;
  SimTransport& a;
  SimTransport& b;
  std::vector<OpenStream> accepted;
  std::shared_ptr<Stream> left;
  std::shared_ptr<Stream> right;
  std::shared_ptr<Collector> left_sink = std::make_shared<Collector>();
  std::shared_ptr<Collector> right_sink = std::make_shared<Collector>();
};

/// Sends `data` through `stream` in two buffers at a time, as fast as it takes them.
struct Pump {
  Pump(std::shared_ptr<Stream> stream_in, std::shared_ptr<Collector> sink_in,
       std::vector<std::byte> data_in)
      : stream(std::move(stream_in)), sink(std::move(sink_in)), data(std::move(data_in)) {
    sink->pump = [this] { run(); };
  }
  void run() {
    while (sent < data.size()) {
      const std::size_t half = std::min<std::size_t>(data.size() - sent, 333);
      const std::size_t rest = std::min<std::size_t>(data.size() - sent - half, 40'000);
      const ConstBuffer buffers[2] = {{data.data() + sent, half},
                                      {data.data() + sent + half, rest}};
      sink->inside = true;
      const std::size_t taken = stream->write(buffers);
      sink->inside = false;
      sent += taken;
      if (taken < half + rest) {
        ++shorts;
        return;
      }
    }
  }
  std::shared_ptr<Stream> stream;
  std::shared_ptr<Collector> sink;
  std::vector<std::byte> data;
  std::size_t sent = 0;
  std::size_t shorts = 0;
};

std::uint64_t transfer(std::uint64_t seed) {
  SimConfig config;
  config.path.jitter = 1ms;
  config.buffer = 30'000;
  Pair pair(seed, config);
  pair.connect();
  Pump there(pair.left, pair.left_sink, random_bytes(300'000, 1));
  Pump back(pair.right, pair.right_sink, random_bytes(200'000, 2));
  there.run();
  back.run();
  REQUIRE(pair.world.run_until(
      [&] {
        return pair.right_sink->received.size() == 300'000 &&
               pair.left_sink->received.size() == 200'000;
      },
      60s));
  CHECK(pair.right_sink->received == there.data);
  CHECK(pair.left_sink->received == back.data);
  CHECK(there.shorts > 5);
  CHECK(there.shorts == pair.left_sink->writable);
  CHECK(pair.right_sink->segments > 30);
  pair.left->close(error{ec::closed, "test is over"});
  pair.left->close(error{ec::closed, "twice"});
  CHECK(
      pair.world.run_until([&] { return pair.left_sink->closed && pair.right_sink->closed; }, 1s));
  CHECK(pair.left_sink->reason.text() == "test is over");
  CHECK(pair.world.connections() == 0);
  CHECK(pair.write(10) == 10);
  return pair.world.log_hash();
}

}  // namespace

TEST_CASE("sim: the executor keeps order, cancels exactly and never runs inline") {
  SimWorld world(1);
  SimTransport& node = world.make_transport(world.node_id(0), "a:1");
  Executor& executor = node.executor(StreamPurpose::heartbeat);
  std::vector<int> ran;
  TimerId doomed = 0;
  executor.post([&] {
    ran.push_back(1);
    CHECK(executor.on_thread());
    executor.post([&] { ran.push_back(3); });
    executor.cancel(doomed);
  });
  executor.post([&] { ran.push_back(2); });
  doomed = executor.schedule(0ns, [&] { ran.push_back(99); });
  executor.schedule(5ms, [&] { ran.push_back(5); });
  const TimerId late = executor.schedule(4ms, [&] { ran.push_back(4); });
  CHECK(late != 0);
  CHECK(ran.empty());
  CHECK_FALSE(executor.on_thread());
  world.run_for(4ms);
  CHECK(ran == std::vector<int>{1, 2, 3, 4});
  CHECK(world.elapsed() == 4ms);
  executor.cancel(late);
  world.run_for(1s);
  CHECK(ran.back() == 5);
  CHECK(world.elapsed() == 1004ms);
  for (int i = 0; i < 100'000; ++i) {
    executor.cancel(executor.schedule(1h, [] { FAIL("cancelled"); }));
  }
  world.run_for(2h);
}

TEST_CASE("sim: bytes arrive in order through a small buffer, and a seed repeats exactly") {
  const std::uint64_t first = transfer(42);
  CHECK(transfer(42) == first);
  CHECK(transfer(43) != first);
}

TEST_CASE("sim: dials are refused, time out and succeed") {
  Pair pair(7);
  CHECK(pair.dial(1s, "nobody:1").error() == ec::refused);
  SimPath path = pair.world.path(pair.a.id(), pair.b.id());
  path.refuse_dials = true;
  pair.world.set_path(pair.a.id(), pair.b.id(), path);
  CHECK(pair.dial(1s).error() == ec::refused);
  path.refuse_dials = false;
  pair.world.set_path(pair.a.id(), pair.b.id(), path);

  pair.world.partition(pair.a.id(), pair.b.id());
  CHECK(pair.dial(1s).error() == ec::timeout);
  CHECK(pair.accepted.empty());
  pair.world.heal(pair.a.id(), pair.b.id());

  // The answer is lost: the acceptor has a stream of which the dialler knows nothing.
  pair.world.partition_one_way(pair.b.id(), pair.a.id());
  CHECK(pair.dial(1s).error() == ec::timeout);
  REQUIRE(pair.accepted.size() == 1);
  pair.accepted[0].stream->start(pair.right_sink);
  pair.world.run_for(1s);
  CHECK_FALSE(pair.right_sink->closed);
  CHECK(pair.world.run_until([&] { return pair.right_sink->closed; }, 120s));

  // A partition shorter than the timeout only delays the dial.
  pair.world.after(300ms, [&] { pair.world.heal(pair.a.id(), pair.b.id()); });
  CHECK(pair.dial(5s));
}

TEST_CASE("sim: a partition holds bytes back, and heals") {
  Pair pair(8);
  pair.connect();
  pair.world.partition_one_way(pair.a.id(), pair.b.id());
  CHECK(pair.write(5000) == 5000);
  const auto answer = random_bytes(100, 3);
  const ConstBuffer buffer{answer};
  pair.right->write({&buffer, 1});
  pair.world.run_for(5s);
  CHECK(pair.right_sink->received.empty());
  CHECK(pair.left_sink->received == answer);
  pair.world.heal(pair.a.id(), pair.b.id());
  pair.world.run_for(200ms);
  CHECK(pair.right_sink->received == random_bytes(5000, 77));
  pair.world.run_for(300s);
  CHECK_FALSE(pair.left_sink->closed);
  CHECK_FALSE(pair.right_sink->closed);
}

TEST_CASE(
    "sim: a partition that lasts ends the stream on the side that writes, then on the other") {
  for (const bool isolate : {false, true}) {
    Pair pair(9);
    pair.connect();
    if (isolate) {
      pair.world.isolate(pair.a.id());
    } else {
      pair.world.partition(pair.a.id(), pair.b.id());
    }
    pair.world.run_for(300s);
    CHECK_FALSE(pair.left_sink->closed);
    pair.write(10);
    pair.world.run_for(19s);
    CHECK_FALSE(pair.left_sink->closed);
    pair.world.run_for(2s);
    CHECK(pair.left_sink->closed);
    CHECK_FALSE(pair.right_sink->closed);
    pair.world.run_for(61s);
    CHECK(pair.right_sink->closed);
    CHECK(pair.world.connections() == 0);
  }
}

TEST_CASE("sim: loss of a connection is noticed at different times, or by one side only") {
  Pair pair(10);
  pair.connect();
  pair.write(3000);
  CHECK(pair.world.drop_connections(pair.a.id(), pair.b.id(), SimLoss::both) == 1);
  pair.write(3000);
  pair.world.run_for(30ms);
  CHECK(pair.left_sink->closed);
  CHECK(pair.right_sink->closed);
  CHECK(pair.left_sink->closed_at != pair.right_sink->closed_at);
  CHECK(pair.right_sink->received.empty());

  for (const bool writes : {true, false}) {
    Pair half(11);
    half.connect();
    half.world.drop_connections(half.b.id(), half.a.id(), SimLoss::first_only);
    half.world.run_for(1s);
    CHECK(half.right_sink->closed);
    CHECK_FALSE(half.left_sink->closed);
    if (writes) {
      half.write(1);
      half.world.run_for(10ms);
    } else {
      half.world.run_for(50s);
      CHECK_FALSE(half.left_sink->closed);
      half.world.run_for(10s);
    }
    CHECK(half.left_sink->closed);
  }

  Pair reset(12);
  reset.connect();
  CHECK(reset.world.drop_connections(reset.a.id(), reset.b.id(), SimLoss::reset,
                                     StreamPurpose::heartbeat) == 0);
  CHECK(reset.world.drop_connections(reset.a.id(), reset.b.id(), SimLoss::reset) == 1);
  reset.world.run_for(0ns);
  CHECK(reset.left_sink->closed);
  CHECK(reset.right_sink->closed);
}

TEST_CASE("sim: a duplicated dial gives the acceptor two streams, one of them dead") {
  Pair pair(13);
  pair.world.duplicate_next_dial(pair.a.id(), pair.b.id());
  auto result = pair.dial(1s);
  REQUIRE(result);
  pair.world.run_for(10ms);
  REQUIRE(pair.accepted.size() == 2);
  auto live = std::make_shared<Collector>();
  result->stream->start(live);
  std::vector<std::shared_ptr<Collector>> sinks;
  for (OpenStream& open : pair.accepted) {
    CHECK(open.peer == pair.a.id());
    sinks.push_back(std::make_shared<Collector>());
    open.stream->start(sinks.back());
    const std::byte hello[3] = {};
    const ConstBuffer buffer{hello};
    open.stream->write({&buffer, 1});
  }
  pair.world.run_for(1s);
  CHECK(live->received.size() == 3);
  CHECK((sinks[0]->closed != sinks[1]->closed));
  CHECK_FALSE(live->closed);
  pair.dial(1s);
  pair.world.run_for(10ms);
  CHECK(pair.accepted.size() == 3);
}

TEST_CASE("sim: a crashed process resets its streams and runs nothing any more") {
  for (std::uint64_t seed = 20; seed < 30; ++seed) {
    Pair pair(seed);
    pair.connect();
    bool ran = false;
    auto payload = std::make_shared<int>(1);
    const std::weak_ptr<int> watch = payload;
    pair.b.executor(StreamPurpose::link).schedule(1ms, [&ran, payload] { ran = true; });
    payload.reset();
    pair.write(1000);
    pair.world.crash(pair.b.id());
    CHECK(watch.expired());
    CHECK_FALSE(pair.world.alive(pair.b.id()));
    pair.b.executor(StreamPurpose::link).post([&ran] { ran = true; });
    pair.world.run_for(1s);
    CHECK(pair.left_sink->closed);
    CHECK_FALSE(pair.right_sink->closed);
    CHECK_FALSE(ran);
    CHECK(pair.world.connections() == 0);
    CHECK(pair.dial(1s).error() == ec::refused);
    SimTransport& again = pair.world.make_transport(pair.world.node_id(5), "b:1");
    again.on_accept([&](OpenStream open) { pair.accepted.push_back(std::move(open)); });
    CHECK(pair.dial(1s)->peer == pair.world.node_id(5));
  }
}

TEST_CASE("sim: after a power cut nobody tells the peer") {
  Pair pair(31);
  pair.connect();
  pair.world.crash(pair.b.id(), SimCrash::host);
  pair.write(10);
  pair.world.run_for(19s);
  CHECK_FALSE(pair.left_sink->closed);
  pair.world.run_for(2s);
  CHECK(pair.left_sink->closed);
  CHECK(pair.dial(1s).error() == ec::timeout);
}

TEST_CASE("sim: a paused node runs nothing, its sender feels it, and it catches up") {
  Pair pair(32);
  pair.connect();
  std::vector<int> ran;
  Executor& executor = pair.b.executor(StreamPurpose::link);
  TimerId second = 0;
  executor.schedule(1ms, [&] {
    ran.push_back(1);
    executor.cancel(second);
  });
  second = executor.schedule(2ms, [&] { ran.push_back(2); });
  executor.schedule(3ms, [&] { ran.push_back(3); });
  pair.world.pause(pair.b.id());
  Pump pump(pair.left, pair.left_sink, random_bytes(1'000'000, 4));
  pump.run();
  pair.world.run_for(100s);
  CHECK(pump.sent < 300'000);
  CHECK(ran.empty());
  CHECK(pair.right_sink->received.empty());
  CHECK_FALSE(pair.left_sink->closed);
  pair.world.resume(pair.b.id());
  CHECK(pair.world.run_until([&] { return pair.right_sink->received.size() == 1'000'000; }, 10s));
  CHECK(pair.right_sink->received == pump.data);
  CHECK(ran == std::vector<int>{1, 3});
}

TEST_CASE("sim: throttle and delay take virtual time") {
  Pair pair(33);
  SimPath path;
  path.delay = 50ms;
  path.bytes_per_second = 100'000;
  pair.world.set_paths(pair.a.id(), pair.b.id(), path);
  pair.connect();
  CHECK(pair.world.elapsed() == 100ms);
  CHECK(pair.write(100'000) == 100'000);
  pair.world.run_for(1s);
  CHECK(pair.right_sink->received.size() < 100'000);
  CHECK(pair.right_sink->received.size() > 50'000);
  pair.world.run_for(100ms);
  CHECK(pair.right_sink->received.size() == 100'000);
}

TEST_CASE("sim: corruption flips exactly one bit") {
  Pair pair(34);
  pair.connect();
  pair.world.corrupt_next(pair.a.id(), pair.b.id());
  pair.write(50'000);
  pair.world.run_for(1s);
  const auto sent = random_bytes(50'000, 77);
  REQUIRE(pair.right_sink->received.size() == sent.size());
  int bits = 0;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    bits += __builtin_popcount(std::to_integer<unsigned>(sent[i] ^ pair.right_sink->received[i]));
  }
  CHECK(bits == 1);
}

TEST_CASE("sim: a handle dropped unused closes, and handles may outlive the world") {
  std::shared_ptr<Stream> survivor;
  std::shared_ptr<Collector> sink = std::make_shared<Collector>();
  {
    Pair pair(35);
    auto result = pair.dial(1s);
    REQUIRE(result);
    result->stream->start(sink);
    pair.accepted.clear();
    pair.world.run_for(1s);
    CHECK(sink->closed);
    pair.connect();
    survivor = pair.left;
    pair.a.executor(StreamPurpose::link).post([stream = survivor] { stream->close({}); });
  }
  CHECK(survivor->write({}) == 0);
  survivor->close(error{ec::closed, "late"});
  CHECK_FALSE(survivor->peer_address().empty());
}

TEST_CASE("sim: an endless loop of posts is given up") {
  SimConfig config;
  config.livelock = 1000;
  SimWorld world(36, config);
  Executor& executor = world.make_transport(world.node_id(0), "a:1").executor(StreamPurpose::link);
  std::function<void()> again = [&] { executor.post(again); };
  executor.post(again);
  CHECK_FALSE(world.run_until([] { return false; }, 1s));
  CHECK(world.log_lines().back().find("livelock") != std::string::npos);
}

TEST_CASE("sim: a step costs the same among a thousand nodes") {
  SimWorld world(37);
  constexpr std::uint32_t count = 1000;
  std::vector<SimTransport*> nodes;
  std::size_t accepted = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    nodes.push_back(&world.make_transport(world.node_id(i), "n" + std::to_string(i) + ":1"));
    nodes.back()->on_accept([&](OpenStream open) {
      ++accepted;
      open.stream->start(std::make_shared<Collector>());
    });
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    for (std::uint32_t k = 1; k <= 10; ++k) {
      nodes[i]->dial("n" + std::to_string((i + k * 7) % count) + ":1", StreamPurpose::link, 1s,
                     [](expected<OpenStream> open) {
                       REQUIRE(open);
                       open->stream->start(std::make_shared<Collector>());
                     });
    }
  }
  world.run_for(1s);
  CHECK(accepted == count * 10);
  CHECK(world.connections() == count * 10);
  world.crash(world.node_id(500));
  world.run_for(1s);
  CHECK(world.connections() == count * 10 - 20);
}
