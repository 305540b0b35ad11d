// Peer streams over real sockets: order, backpressure, ends, threads.
#include <catch2/catch.hpp>

#include <dirent.h>

#include "endpoint_support.hpp"
#include "net/philox.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace troupe::net::test;

namespace {

struct Pair {
  std::shared_ptr<Stream> client;
  std::shared_ptr<Stream> server;
  std::shared_ptr<RecordingSink> client_sink = std::make_shared<RecordingSink>();
  std::shared_ptr<RecordingSink> server_sink = std::make_shared<RecordingSink>();
};

/// Connects `a` to `b`; the sinks are not started.
Pair connect(TestNode& a, TestNode& b, StreamPurpose purpose = StreamPurpose::link) {
  Pair pair;
  auto dialled = a.dial(b.address(), purpose);
  INFO((dialled ? "" : to_string(dialled.error())));
  REQUIRE(dialled);
  auto accepted = b.arrivals->take();
  REQUIRE(accepted.stream);
  CHECK(accepted.purpose == purpose);
  pair.client = dialled->stream;
  pair.server = accepted.stream;
  return pair;
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* dir = ::opendir("/proc/self/fd");
  while (::readdir(dir) != nullptr) {
    ++count;
  }
  ::closedir(dir);
  return count;
}

}  // namespace

TEST_CASE("a dialled stream knows its peer and carries bytes both ways") {
  TestNode a({.id = 1});
  TestNode b({.id = 2});
  for (const auto purpose : {StreamPurpose::link, StreamPurpose::heartbeat}) {
    auto dialled = a.dial(b.address(), purpose);
    REQUIRE(dialled);
    CHECK(dialled->peer == NodeId{0xABCD, 2});
    CHECK(dialled->purpose == purpose);
    CHECK(dialled->stream->peer_address() == b.address());
    CHECK_FALSE(dialled->stream->encrypted());
    auto accepted = b.arrivals->take();
    REQUIRE(accepted.stream);
    CHECK(accepted.peer == NodeId{0xABCD, 1});
    CHECK(accepted.purpose == purpose);

    auto client = std::make_shared<RecordingSink>();
    auto server = std::make_shared<RecordingSink>();
    // The server may speak first, before the client has a sink.
    accepted.stream->start(server);
    CHECK(write_text(*accepted.stream, "welcome") == 7);
    dialled->stream->start(client);
    CHECK(write_text(*dialled->stream, "hello") == 5);
    CHECK(eventually([&] { return client->received() == "welcome"; }));
    CHECK(eventually([&] { return server->received() == "hello"; }));
    dialled->stream->close({ec::closed, "done"});
    dialled->stream->close({ec::closed, "twice"});
    CHECK(eventually([&] { return client->closed == 1 && server->closed == 1; }));
    CHECK(client->reason().text() == "done");
    CHECK(server->reason() == ec::closed);
  }
}

TEST_CASE("bytes written before a close arrive, even with unread input on the closing side") {
  TcpStreamOptions patient;
  patient.linger = 20s;
  TestNode a({.id = 1, .stream = patient});
  TestNode b({.id = 2, .stream = patient});
  for (int round = 0; round < 5; ++round) {
    auto pair = connect(a, b);
    write_text(*pair.client, std::string(100'000, 'x'));
    // The server never reads, and leaves with more under way than the client's socket holds.
    std::size_t sent = write_text(*pair.server, std::string(std::size_t{32} << 20U, 'y'));
    pair.server->close({ec::conflict, "refused"});
    pair.client->start(pair.client_sink);
    CHECK(eventually([&] { return pair.client_sink->closed == 1; }));
    CHECK(pair.client_sink->size() == sent);
    CHECK(pair.client_sink->reason() == ec::closed);
  }
}

TEST_CASE("a peer that does not read makes write short, and on_writable follows") {
  TestNode a({.id = 1});
  TestNode b({.id = 2});
  auto pair = connect(a, b);
  pair.client->start(pair.client_sink);
  const std::string chunk(1 << 20, 'b');
  std::size_t sent = 0;
  bool short_write = false;
  for (int i = 0; i < 256 && !short_write; ++i) {
    const std::size_t taken = write_text(*pair.client, chunk);
    sent += taken;
    short_write = taken < chunk.size();
  }
  REQUIRE(short_write);
  CHECK(pair.client_sink->writable == 0);
  CHECK(write_text(*pair.client, chunk) < chunk.size());
  pair.server->start(pair.server_sink);
  CHECK(eventually([&] { return pair.client_sink->writable >= 1; }));
  CHECK(eventually([&] { return pair.server_sink->size() >= sent; }));
}

TEST_CASE("writers on any thread, one at a time, keep the order") {
  TestNode a({.id = 1});
  TestNode b({.id = 2});
  auto pair = connect(a, b);
  pair.client->start(pair.client_sink);
  pair.server->start(pair.server_sink);
  std::mutex turn;
  std::string expected_text;
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      for (int i = 0; i < 2000; ++i) {
        const std::string text = std::to_string(writer) + ":" + std::to_string(i) + ";";
        const std::lock_guard lock(turn);
        std::string_view rest = text;
        while (!rest.empty()) {
          rest.remove_prefix(write_text(*pair.client, rest));
        }
        expected_text += text;
      }
    });
  }
  for (auto& writer : writers) {
    writer.join();
  }
  CHECK(eventually([&] { return pair.server_sink->size() >= expected_text.size(); }));
  CHECK(pair.server_sink->received() == expected_text);
}

TEST_CASE("many small buffers in one write arrive whole and in order") {
  TestNode a({.id = 1});
  TestNode b({.id = 2});
  auto pair = connect(a, b);
  pair.client->start(pair.client_sink);
  pair.server->start(pair.server_sink);
  std::vector<std::string> parts;
  std::string whole;
  PhiloxStream random(7);
  for (int i = 0; i < 1000; ++i) {
    parts.push_back(std::string(random.below(300), static_cast<char>('a' + i % 26)));
    whole += parts.back();
  }
  std::vector<ConstBuffer> buffers;
  for (const auto& part : parts) {
    buffers.push_back(std::as_bytes(std::span{part}));
  }
  CHECK(pair.client->write(buffers) == whole.size());
  CHECK(eventually([&] { return pair.server_sink->size() == whole.size(); }));
  CHECK(pair.server_sink->received() == whole);
}

TEST_CASE("a stream may be handed to another sink from inside a callback") {
  struct First : RecordingSink {
    void on_bytes(std::size_t count) override {
      RecordingSink::on_bytes(count);
      stream->start(next);
      stream.reset();
    }
    std::shared_ptr<Stream> stream;
    std::shared_ptr<StreamSink> next;
  };
  TestNode a({.id = 1});
  TestNode b({.id = 2});
  auto pair = connect(a, b);
  auto first = std::make_shared<First>();
  std::weak_ptr<First> watch = first;
  first->stream = pair.server;
  first->next = pair.server_sink;
  pair.server->start(std::move(first));
  write_text(*pair.client, "one");
  CHECK(eventually([&] { return watch.expired(); }));
  write_text(*pair.client, "two");
  CHECK(eventually([&] { return pair.server_sink->received() == "two"; }));
  pair.client->close({ec::closed, "end"});
  CHECK(eventually([&] { return pair.server_sink->closed == 1; }));
}

TEST_CASE("streams that are closed before their start, or never started, leave nothing behind") {
  TestNode a({.id = 1});
  TestNode b({.id = 2});
  { connect(a, b); }
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    auto pair = connect(a, b);
    if (i % 2 == 0) {
      pair.client->close({ec::closed, "early"});
      pair.client->start(pair.client_sink);
      CHECK(eventually([&] { return pair.client_sink->closed == 1; }));
      CHECK(pair.client_sink->reason().text() == "early");
    }
  }
  CHECK(eventually([&] { return open_descriptors() <= before; }));
}

TEST_CASE("fifty connections at once, and the sinks are released at the end") {
  TestNode a({.id = 1});
  TestNode b({.id = 2}, true);
  std::vector<std::shared_ptr<Stream>> streams;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 50; ++i) {
    auto dialled = a.dial(b.address(), i % 2 == 0 ? StreamPurpose::link : StreamPurpose::heartbeat);
    REQUIRE(dialled);
    sinks.push_back(std::make_shared<RecordingSink>());
    streams.push_back(dialled->stream);
    streams.back()->start(sinks.back());
  }
  for (int i = 0; i < 50; ++i) {
    write_text(*streams[i], "echo " + std::to_string(i));
  }
  for (int i = 0; i < 50; ++i) {
    CHECK(eventually([&] { return sinks[i]->received() == "echo " + std::to_string(i); }));
    streams[i]->close({ec::closed, "done"});
  }
  std::vector<std::weak_ptr<RecordingSink>> watch(sinks.begin(), sinks.end());
  CHECK(eventually([&] {
    return std::all_of(sinks.begin(), sinks.end(), [](auto& sink) { return sink->closed == 1; });
  }));
  sinks.clear();
  streams.clear();
  for (auto& sink : watch) {
    CHECK(eventually([&] { return sink.expired(); }));
  }
}

TEST_CASE("shutting a transport down closes its streams with one on_closed each, within bounds") {
  TestNode b({.id = 2});
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<std::shared_ptr<Stream>> streams;
  {
    TestNode a({.id = 1});
    for (int i = 0; i < 4; ++i) {
      auto pair = connect(a, b, i % 2 == 0 ? StreamPurpose::link : StreamPurpose::heartbeat);
      pair.client->start(pair.client_sink);
      pair.server->start(pair.server_sink);
      sinks.push_back(pair.client_sink);
      sinks.push_back(pair.server_sink);
      streams.push_back(pair.client);
      streams.push_back(pair.server);
    }
  }
  for (auto& sink : sinks) {
    CHECK(eventually([&] { return sink->closed == 1; }));
  }
  // A stream outlives its transport without harm.
  CHECK(write_text(*streams[0], "late") == 4);
  streams[0]->close({ec::closed, "late"});
}

TEST_CASE("dialling fails with a reason") {
  TestNode a({.id = 1});
  TestNode other({.id = 3, .cluster = "other"});
  SECTION("another cluster") {
    const auto dialled = a.dial(other.address());
    REQUIRE_FALSE(dialled);
    CHECK(dialled.error() == ec::handshake_refused);
    CHECK(dialled.error().text().find("'other'") != std::string::npos);
    CHECK(dialled.error().text().find("'test'") != std::string::npos);
  }
  SECTION("nobody listens") {
    std::string gone;
    {
      TestNode b({.id = 2});
      gone = b.address();
    }
    const auto dialled = a.dial(gone);
    REQUIRE_FALSE(dialled);
    CHECK(dialled.error() == ec::refused);
  }
  SECTION("itself") {
    const auto dialled = a.dial(a.address());
    REQUIRE_FALSE(dialled);
    CHECK(dialled.error() == ec::handshake_refused);
  }
  SECTION("a listener that never answers") {
    const int silent = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof where;
    REQUIRE(::bind(silent, reinterpret_cast<sockaddr*>(&where), size) == 0);
    REQUIRE(::listen(silent, 5) == 0);
    REQUIRE(::getsockname(silent, reinterpret_cast<sockaddr*>(&where), &size) == 0);
    const auto dialled =
        a.dial("127.0.0.1:" + std::to_string(ntohs(where.sin_port)), StreamPurpose::link, 200ms);
    ::close(silent);
    REQUIRE_FALSE(dialled);
    CHECK(dialled.error() == ec::timeout);
  }
  SECTION("malformed addresses and unknown names") {
    for (const char* bad : {"", "nohost", "host:", "host:99999", "::1:80", "[::1]", "a b:1"}) {
      const auto dialled = a.dial(bad);
      REQUIRE_FALSE(dialled);
      CHECK(dialled.error() == ec::invalid_argument);
    }
    const auto dialled = a.dial("no-such-host.invalid:1", StreamPurpose::link, 5s);
    REQUIRE_FALSE(dialled);
  }
  SECTION("after the shutdown") {
    a.transport.shutdown();
    const auto dialled = a.dial(other.address());
    REQUIRE_FALSE(dialled);
    CHECK(dialled.error() == ec::closed);
  }
}

TEST_CASE("host names and IPv6 work") {
  TestNode a({.id = 1});
  TestNode b({.id = 2, .listen = "localhost:0"});
  const auto port = std::to_string(b.transport.endpoint().port());
  CHECK(a.dial("localhost:" + port));
  try {
    TestNode six({.id = 6, .listen = "[::1]:0"});
    CHECK(a.dial(six.address()));
  } catch (const std::runtime_error& ex) {
    WARN("no IPv6 here: " << ex.what());
  }
}

TEST_CASE("the executor keeps order, and a timer cancelled on its thread never runs") {
  auto executor = AsioExecutor::create("test");
  std::vector<int> order;
  std::promise<void> done;
  std::atomic<bool> wrong{false};
  executor->post([&] {
    CHECK(executor->on_thread());
    order.push_back(1);
    const TimerId doomed = executor->schedule(1ms, [&] { wrong = true; });
    executor->schedule(0ms, [&, doomed] {
      const auto end = executor->now() + 5ms;
      while (executor->now() < end) {
      }
      executor->cancel(doomed);
    });
    executor->schedule(40ms, [&] {
      order.push_back(4);
      done.set_value();
    });
    executor->schedule(20ms, [&] { order.push_back(3); });
    executor->post([&] { order.push_back(2); });
  });
  REQUIRE(done.get_future().wait_for(10s) == std::future_status::ready);
  CHECK_FALSE(executor->on_thread());
  CHECK(executor->stop(5s));
  CHECK(executor->stop(5s));
  CHECK_FALSE(wrong);
  CHECK(order == std::vector<int>{1, 2, 3, 4});
  executor->post([&] { wrong = true; });
  executor->schedule(0ms, [&] { wrong = true; });
  CHECK_FALSE(wrong);
}
