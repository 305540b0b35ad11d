// Heartbeats and the fault injector on real sockets and threads, controlled from a third thread.
#include <catch2/catch.hpp>

#include <thread>

#include "net/faults.hpp"
#include "net/heartbeat.hpp"
#include "net/tcp_transport.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace std::chrono_literals;

namespace {

struct TcpNode {
  explicit TcpNode(std::uint64_t number) : id(number, 1) {
    TcpTransportConfig config;
    config.endpoint.node = id;
    config.endpoint.cluster = "heartbeats";
    transport = std::make_unique<TcpTransport>(config);
    faulty = std::make_unique<FaultyTransport>(*transport, injector);
    HeartbeatConfig beat;
    beat.interval = 20ms;
    beat.phi.min_deviation = 20ms;
    beat.backoff_most = 200ms;
    beat.dial_timeout = 300ms;
    beats = std::make_unique<Heartbeats>(*faulty, id, beat);
    faulty->on_accept([this](OpenStream open) { beats->accept(std::move(open)); });
    const auto listening = transport->listen("127.0.0.1:0");
    REQUIRE(listening);
    address = transport->endpoint().address();
  }
  ~TcpNode() {
    beats->stop();
    transport->shutdown();
  }
  NodeId id;
  std::shared_ptr<FaultInjector> injector = std::make_shared<FaultInjector>(1);
  std::unique_ptr<TcpTransport> transport;
  std::unique_ptr<FaultyTransport> faulty;
  std::unique_ptr<Heartbeats> beats;
  std::string address;
};

bool wait_for(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

bool connected(const TcpNode& from, const TcpNode& to) {
  const auto stats = from.beats->stats(to.id);
  return stats && stats->connected;
}

double phi(const TcpNode& from, const TcpNode& to) {
  const auto stats = from.beats->stats(to.id);
  return stats ? stats->phi : 0.0;
}

}  // namespace

TEST_CASE("heartbeat over TCP: both dial, partition, heal, drop, corruption, forget") {
  TcpNode a(1);
  TcpNode b(2);
  a.beats->watch(b.id, b.address);
  b.beats->watch(a.id, a.address);
  REQUIRE(wait_for([&] { return connected(a, b) && connected(b, a); }));
  REQUIRE(wait_for([&] { return a.beats->stats(b.id)->pings_received > 20; }));
  CHECK(a.beats->stats(b.id)->rtt_last > 0ns);
  CHECK(a.beats->stats(b.id)->rtt_max >= a.beats->stats(b.id)->rtt_mean);

  a.injector->partition(b.id, FaultSide::both);
  CHECK(wait_for([&] { return phi(a, b) > 8.0 && phi(b, a) > 8.0; }));
  a.injector->heal(b.id);
  CHECK(wait_for([&] { return connected(a, b) && phi(a, b) < 2.0 && phi(b, a) < 2.0; }));

  for (int i = 0; i < 5; ++i) {
    const auto before = a.beats->stats(b.id)->connects;
    CHECK(wait_for([&] { return a.injector->drop(b.id) > 0; }));
    CHECK(wait_for([&] { return connected(a, b) && a.beats->stats(b.id)->connects > before; }));
  }
  const auto broken = a.beats->malformed();
  a.injector->corrupt_next(b.id);
  CHECK(wait_for([&] { return a.beats->malformed() > broken; }));
  CHECK(wait_for([&] { return connected(a, b) && connected(b, a); }));

  b.beats->forget(a.id);
  a.beats->forget(b.id);
  CHECK(wait_for([&] { return !a.beats->stats(b.id) && !b.beats->stats(a.id); }));
}
