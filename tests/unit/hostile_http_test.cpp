// The port under hostile input: each offender loses its connection and nothing else happens.
#include <catch2/catch.hpp>

#include <sys/resource.h>

#include <fstream>

#include "endpoint_support.hpp"
#include "net/philox.hpp"
#include "tls_support.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace troupe::net::test;

namespace {

std::size_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  in >> total >> resident;
  return resident * 4096;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t memory_slack = std::size_t{512} << 20U;  // quarantine and shadow memory
#else
constexpr std::size_t memory_slack = std::size_t{48} << 20U;
#endif

HttpLimits short_limits() {
  HttpLimits limits;
  limits.header_timeout = 300ms;
  limits.body_timeout = 300ms;
  limits.write_timeout = 500ms;
  limits.idle_timeout = 300ms;
  limits.websocket_idle_timeout = 1s;
  return limits;
}

std::string get(std::uint16_t port, const std::string& path) {
  RawClient client(port);
  client.send("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  return client.read_all();
}

std::string random_bytes(PhiloxStream& random, std::size_t size) {
  std::string out(size, '\0');
  for (auto& c : out) {
    c = static_cast<char>(random());
  }
  return out;
}

const std::vector<std::string>& valid_inputs() {
  static const std::vector<std::string> inputs{
      "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
      "GET /peer HTTP/1.1\r\nHost: x\r\nUpgrade: troupe/1\r\nConnection: Upgrade\r\n"
      "Troupe-Node: 0123456789abcdef0123456789abcdef\r\nTroupe-Cluster: test\r\n"
      "Troupe-Purpose: link\r\n\r\n",
      "GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"};
  return inputs;
}

std::string hostile_input(PhiloxStream& random) {
  std::string base = valid_inputs()[random.below(valid_inputs().size())];
  switch (random.below(10)) {
    case 0:
      return random_bytes(random, 1 + random.below(4000));
    case 1:  // truncated
      return base.substr(0, random.below(base.size()));
    case 2:  // flipped bits
      for (std::uint64_t i = 0, n = 1 + random.below(8); i < n; ++i) {
        base[random.below(base.size())] ^= static_cast<char>(1U << random.below(8));
      }
      return base;
    case 3:
      return "GET /" + std::string(random.below(100'000), 'a') + " HTTP/1.1\r\n\r\n";
    case 4:
      return "GET / HTTP/1.1\r\n" + std::string(random.below(40'000), 'h') + ": 1\r\n\r\n";
    case 5: {
      const char* sizes[] = {"4294967296",
                             "18446744073709551615",
                             "99999999999999999999",
                             "-1",
                             "0x10",
                             "1048577",
                             ""};
      return "POST /echo HTTP/1.1\r\nContent-Length: " + std::string(sizes[random.below(7)]) +
             "\r\n\r\n" + random_bytes(random, random.below(2000));
    }
    case 6:
      return "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n" +
             random_bytes(random, random.below(2000));
    case 7:  // a WebSocket, then garbage or a frame of 2^63 bytes
      return valid_inputs()[4] +
             (random.below(2) == 0 ? random_bytes(random, random.below(500))
                                   : std::string("\x82\xFF\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 10));
    case 8:  // a peer, then garbage
      return valid_inputs()[3] + random_bytes(random, random.below(5000));
    default:
      return "GET /%" + random_bytes(random, 3) + "?" + random_bytes(random, random.below(50)) +
             " HTTP/1.1\r\n" + random_bytes(random, random.below(200)) + "\r\n\r\n";
  }
}

void add_routes(TestNode& node) {
  node.transport.endpoint().add_route("POST", "/echo", [](const HttpRequest& request) {
    HttpResponse out;
    out.body = request.body;
    return out;
  });
  node.transport.endpoint().on_websocket("/ws", [](const std::shared_ptr<WebSocketSession>& ws) {
    ws->on_binary([ws](std::string bytes) { ws->send_binary(std::move(bytes)); });
    ws->on_text([ws](std::string text) { ws->send_text(std::move(text)); });
  });
}

/// Keeps a peer stream busy and checks its answers.
class Companion {
 public:
  Companion(TestNode& from, const std::string& to) {
    auto dialled = from.dial(to);
    if (!dialled) {
      throw std::runtime_error(dialled.error().text());
    }
    stream_ = dialled->stream;
    stream_->start(sink_);
  }
  ~Companion() { stream_->close({ec::closed, "test over"}); }

  bool still_echoes() {
    const std::string text = "message " + std::to_string(++number_) + ";";
    write_text(*stream_, text);
    sent_ += text;
    return eventually([&] { return sink_->size() >= sent_.size(); }) &&
           sink_->received() == sent_ && sink_->closed == 0;
  }

 private:
  std::shared_ptr<Stream> stream_;
  std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
  std::string sent_;
  int number_ = 0;
};

void attack(TestNode& node, TestNode& peer, std::uint64_t seed, int inputs, bool tls) {
  LogCapture quiet;
  Companion companion(peer, node.address());
  const auto port = node.transport.endpoint().port();
  PhiloxStream random(seed);
  std::size_t base = 0;
  for (int i = 0; i < inputs; ++i) {
    if (i == 200) {
      base = resident_bytes();
    }
    RawClient client(port);
    REQUIRE(client.connected());
    std::string input = hostile_input(random);
    if (tls && random.below(4) != 0) {
      input = std::string("\x16\x03\x01", 3) + input;
    }
    client.send(input);
    const auto ending = random.below(4);
    if (ending == 0) {
      const linger abrupt{1, 0};  // reset instead of a goodbye
      ::setsockopt(client.fd(), SOL_SOCKET, SO_LINGER, &abrupt, sizeof abrupt);
    } else if (ending != 1) {
      ::shutdown(client.fd(), SHUT_WR);
      client.read_all();
      INFO("input " << i << " of seed " << seed);
      CHECK(client.ended);
    }
    if (i % 50 == 0) {
      REQUIRE(companion.still_echoes());
    }
  }
  CHECK(companion.still_echoes());
  const auto counters = [&] { return node.transport.endpoint().counters(); };
  CHECK(eventually(
      [&] { return counters().open_unauthenticated == 0 && counters().open_websockets == 0; }));
  CHECK(resident_bytes() < base + memory_slack);
}

}  // namespace

TEST_CASE("2,000 hostile inputs cost their senders their connections and nobody else anything") {
  TestNode node({.id = 1, .limits = short_limits()}, true);
  add_routes(node);
  TestNode peer({.id = 2});
  attack(node, peer, 1, 2000, false);
  CHECK(get(node.transport.endpoint().port(), "/livez").find("200 OK") != std::string::npos);
}

TEST_CASE("hostile inputs against a TLS port") {
  TestCa ca("test");
  const auto tls = load_tls(ca.issue("node"));
  TestNode node({.id = 1, .tls = tls, .limits = short_limits()}, true);
  add_routes(node);
  TestNode peer({.id = 2, .tls = tls});
  attack(node, peer, 2, 500, true);
}

TEST_CASE("slow writers lose their connection at the deadline, however busy they are") {
  LogCapture quiet;
  TestNode node({.id = 1, .limits = short_limits()});
  add_routes(node);
  const auto port = node.transport.endpoint().port();
  const auto drip = [&](const std::string& start) {
    RawClient client(port);
    client.send(start);
    // A byte at a time keeps any idle timeout away, but not an absolute deadline.
    return eventually([&] { return !client.send("x"); }, 10s);
  };
  CHECK(drip("GET /"));
  CHECK(drip("GET / HTTP/1.1\r\nHeader: "));
  CHECK(drip("POST /echo HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n"));
  RawClient silent(port);
  silent.read_all(10s);
  CHECK(silent.ended);
  RawClient idle(port);
  idle.send(valid_inputs()[0]);
  CHECK(idle.read_until("ok").find("200 OK") != std::string::npos);
  idle.read_all(10s);
  CHECK(idle.ended);
  CHECK(eventually([&] { return node.transport.endpoint().counters().open_unauthenticated == 0; }));
}

TEST_CASE("a client that does not read its answer loses its connection") {
  LogCapture quiet;
  TestNode node({.id = 1, .limits = short_limits()});
  node.transport.endpoint().add_route("GET", "/big", [](const HttpRequest&) {
    HttpResponse out;
    out.body = std::string(std::size_t{64} << 20U, 'x');
    return out;
  });
  RawClient client(node.transport.endpoint().port());
  client.send("GET /big HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto counters = [&] { return node.transport.endpoint().counters(); };
  CHECK(eventually([&] { return counters().requests == 1; }));
  CHECK(eventually([&] { return counters().open_unauthenticated == 0; }));
}

TEST_CASE("connections beyond the limit are turned away; peers that are in stay in") {
  LogCapture quiet;
  HttpLimits limits;
  limits.unauthenticated = 8;
  TestNode node({.id = 1, .limits = limits}, true);
  TestNode peer({.id = 2});
  Companion companion(peer, node.address());
  std::vector<std::unique_ptr<RawClient>> crowd;
  for (int i = 0; i < 8; ++i) {
    crowd.push_back(std::make_unique<RawClient>(node.transport.endpoint().port()));
  }
  const auto counters = [&] { return node.transport.endpoint().counters(); };
  CHECK(eventually([&] { return counters().open_unauthenticated == 8; }));
  RawClient late(node.transport.endpoint().port());
  late.read_all();
  CHECK(late.ended);
  CHECK(counters().turned_away == 1);
  CHECK(companion.still_echoes());
  crowd.clear();
  CHECK(eventually([&] { return counters().open_unauthenticated == 0; }));
  CHECK(get(node.transport.endpoint().port(), "/livez").find("200 OK") != std::string::npos);
}

TEST_CASE("without file descriptors the listener waits, and goes on when there are some again") {
  LogCapture log;
  TestNode node({.id = 1});
  RawClient warm_up(node.transport.endpoint().port());
  warm_up.send(valid_inputs()[0]);
  CHECK(warm_up.read_until("ok").find("200 OK") != std::string::npos);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  rlimit none = before;
  none.rlim_cur = 3;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(node.transport.endpoint().port());
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int connected = ::connect(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where);
  const bool noticed = eventually([&] { return log.count("cannot accept") >= 2; });
  const std::size_t lines = log.count("cannot accept");
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(connected == 0);
  CHECK(noticed);
  CHECK(lines < 10);
  const std::string& request = valid_inputs()[0];
  CHECK(::send(fd, request.data(), request.size(), MSG_NOSIGNAL) > 0);
  char chunk[512];
  timeval limit{10, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  CHECK(::recv(fd, chunk, sizeof chunk, 0) > 0);
  ::close(fd);
}
