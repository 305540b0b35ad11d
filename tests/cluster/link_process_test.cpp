// Two real processes: what happens to requests and monitors when connections break, and when the other
// process is killed, stopped or busy.
#include <caf/all.hpp>
#include <catch2/catch.hpp>
#include <spdlog/spdlog.h>

#include <atomic>
#include <csignal>

#include "net/caf_error.hpp"
#include "net/philox.hpp"
#include "runtime/node.hpp"
#include "tests/support/messages.hpp"
#include "tests/support/process.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;

namespace {

const bool quiet = [] {
  prepare_process();
  spdlog::set_level(spdlog::level::err);
  return true;
}();

using Clock = std::chrono::steady_clock;

// A node in this process and one in another.
struct Cluster {
  ChildProcess child{{TROUPE_TEST_PEER, "cluster-test"}};
  std::unique_ptr<Node> node;
  NodeId peer;
  std::string address;

  explicit Cluster(const std::function<void(NodeOptions&)>& change = {}) {
    NodeOptions options;
    options.name = "driver";
    options.cluster = "cluster-test";
    options.types = [](net::TypeRegistry& registry) { return add_test_types(registry); };
    if (change) {
      change(options);
    }
    auto started = Node::start(std::move(options));
    REQUIRE(started);
    node = std::move(*started);
    peer = link_to(child, &address);
  }

  ~Cluster() { node->stop(); }

  NodeId link_to(ChildProcess& process, std::string* where = nullptr) {
    const auto listening = process.read_until("listening ");
    REQUIRE(listening);
    if (where != nullptr) {
      *where = *listening;
    }
    const auto id = node->mesh().connect_wait(*listening);
    REQUIRE(id);
    return *id;
  }

  caf::actor find(const std::string& name) { return find(peer, name); }

  caf::actor find(const NodeId& id, const std::string& name) {
    const auto found = node->mesh().find_wait(id, name);
    REQUIRE(found);
    return *found;
  }
};

// Sends `total` numbered requests with a window, checks that the answers come in order.
struct Progress {
  std::atomic<std::uint64_t> answered{0};
  std::atomic<std::uint64_t> wrong{0};
  std::atomic<std::uint64_t> errors{0};
  std::atomic<bool> done{false};
};

struct RequesterState {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
};

caf::behavior requester(caf::stateful_actor<RequesterState>* self, caf::actor target,
                        std::uint64_t total, std::uint64_t window, Progress* progress) {
  self->set_down_handler([](caf::scheduled_actor*, caf::down_msg&) {});
  return {
      [=](caf::tick_atom) {
        auto& state = self->state;
        while (state.sent < total && state.sent - state.received < window) {
          const auto number = state.sent++;
          self->request(target, caf::infinite, number)
              .then(
                  [=](std::uint64_t answer) {
                    auto& mine = self->state;
                    if (answer != number || number != mine.received) {
                      ++progress->wrong;
                    }
                    ++mine.received;
                    ++progress->answered;
                    if (mine.received == total) {
                      progress->done = true;
                      self->quit();
                    } else if (mine.sent - mine.received < window / 2 + 1) {
                      self->send(self, caf::tick_atom_v);
                    }
                  },
                  [=](caf::error&) {
                    ++progress->errors;
                    progress->done = true;
                    self->quit();
                  });
        }
      },
  };
}

}  // namespace

TEST_CASE("1,000,000 requests in order while the connection is cut 50 times", "[cluster]") {
  const auto seed = test_seed("connection cut 50 times");
  PhiloxStream random{seed, 1};
  Cluster cluster;
  constexpr std::uint64_t total = 1'000'000;
  Progress progress;
  const auto target = cluster.find("counter");
  const auto actor =
      cluster.node->system().spawn(requester, target, total, std::uint64_t{500}, &progress);
  caf::anon_send(actor, caf::tick_atom_v);
  // Cuts at random counts of answers, so that they fall into the traffic whatever its speed.
  std::uint64_t next = 0;
  for (int cut = 0; cut < 50; ++cut) {
    next += 1 + random.below(2 * total / 50 - 1);
    REQUIRE(eventually([&] { return progress.answered >= std::min(next, total) || progress.done; },
                       120s));
    cluster.node->mesh().drop_connection(cluster.peer);
    const auto before = static_cast<std::uint64_t>(cut) + 2;
    REQUIRE(eventually(
        [&] { return cluster.node->mesh().link_counters(cluster.peer).connections >= before; }));
  }
  REQUIRE(eventually([&] { return progress.done.load(); }, 200s));
  CHECK(progress.answered == total);
  CHECK(progress.wrong == 0);
  CHECK(progress.errors == 0);
  const auto counters = cluster.node->mesh().link_counters(cluster.peer);
  CHECK(counters.connections == 51);
  CHECK(eventually([&] { return cluster.node->mesh().table_sizes(cluster.peer).pending == 0; }));
}

TEST_CASE("kill -9 of the peer fails pending requests within 100 ms and fires monitors",
          "[cluster]") {
  for (int round = 0; round < 5; ++round) {
    Cluster cluster;
    const auto target = cluster.find("silent");
    caf::scoped_actor self{cluster.node->system()};
    self->monitor(target);
    auto handle = self->request(target, caf::infinite, std::uint64_t{1});
    // Known to have arrived, so that "may have been executed" is the truth.
    self->request(cluster.find("echo"), 20s, std::uint64_t{2})
        .receive([](std::uint64_t) {}, [](const caf::error& err) { FAIL(describe(err)); });
    const auto start = Clock::now();
    cluster.child.signal(SIGKILL);
    caf::error err;
    handle.receive([](const caf::message&) {}, [&](const caf::error& e) { err = e; });
    const auto failed = Clock::now() - start;
    CHECK(err == ec::may_have_executed);
    CHECK(describe(err).find("gone") != std::string::npos);
    caf::error reason;
    self->receive([&](caf::down_msg& msg) { reason = msg.reason; },
                  caf::after(std::chrono::seconds{20}) >> [] {});
    CHECK(reason == ec::node_unreachable);
    CHECK(failed < 100ms);
    // A handle that is used afterwards fails at once.
    caf::error again;
    self->request(target, caf::infinite, std::uint64_t{3})
        .receive([](const caf::message&) {}, [&](const caf::error& e) { again = e; });
    CHECK(again == ec::node_unreachable);
  }
}

TEST_CASE("a stopped peer holds its senders back at the bound, others are not slowed",
          "[cluster]") {
  constexpr std::size_t bound = 16U << 20U;
  Cluster cluster{[](NodeOptions& options) { options.link.queue_bytes[1] = bound; }};
  ChildProcess other{{TROUPE_TEST_PEER, "cluster-test"}};
  const auto other_id = cluster.link_to(other);
  const auto target = cluster.find("echo");
  const auto control = cluster.find(other_id, "control");
  caf::scoped_actor self{cluster.node->system()};
  const std::string chunk(100'000, 'x');
  // Warm, so that what is measured is the queue and not first-time allocations.
  for (int i = 0; i < 50; ++i) {
    self->request(control, 20s, std::uint64_t{1})
        .receive([](std::uint64_t) {}, [](const caf::error& err) { FAIL(describe(err)); });
  }
  const auto before = resident_bytes(getpid());
  cluster.child.signal(SIGSTOP);
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;
  std::vector<double> control_ms;
  const auto end = Clock::now() + 3s;
  while (Clock::now() < end) {
    for (int i = 0; i < 20; ++i) {
      if (cluster.node->mesh().writable(target)) {
        self->anon_send(target, chunk);
        ++accepted;
      } else {
        ++refused;
      }
    }
    const auto start = Clock::now();
    self->request(control, 20s, std::uint64_t{1})
        .receive([](std::uint64_t) {}, [](const caf::error& err) { FAIL(describe(err)); });
    control_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  CHECK(refused > 0);
  CHECK_FALSE(cluster.node->mesh().writable(target));
  // The bound, and what the two sockets between had taken.
  CHECK(accepted * chunk.size() < bound + (20U << 20U));
  const auto grown = resident_bytes(getpid()) - before;
  INFO("grown by " << grown << " bytes");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(grown < bound + (20U << 20U));
#endif
  std::sort(control_ms.begin(), control_ms.end());
  INFO("control round trips: median " << control_ms[control_ms.size() / 2] << " ms, 99 % "
                                      << control_ms[control_ms.size() * 99 / 100] << " ms");
  CHECK(control_ms[control_ms.size() * 99 / 100] < 10.0);
  // A request that finds the queue full is told so at once.
  caf::error err;
  self->request(target, 20s, chunk)
      .receive([](const caf::message&) {}, [&](const caf::error& e) { err = e; });
  CHECK(err == ec::would_block);
  // Woken up, it takes everything that was accepted.
  std::atomic<bool> writable{false};
  cluster.node->mesh().when_writable(target, [&] { writable = true; });
  cluster.child.signal(SIGCONT);
  CHECK(eventually([&] { return writable.load(); }));
  self->request(target, 20s, std::uint64_t{4})
      .receive([](std::uint64_t) {}, [](const caf::error& e) { FAIL(describe(e)); });
}

TEST_CASE("heartbeats are answered while all other threads of the peer are busy", "[cluster]") {
  Cluster cluster{[](NodeOptions& options) { options.heartbeat.interval = 20ms; }};
  const auto burner = cluster.find("burner");
  for (int i = 0; i < 64; ++i) {
    caf::anon_send(burner, std::uint64_t{60});
  }
  ChildProcess other{{TROUPE_TEST_PEER, "cluster-test"}};
  const auto other_id = cluster.link_to(other);
  for (int i = 0; i < 64; ++i) {
    caf::anon_send(cluster.find(other_id, "burner"), std::uint64_t{60});
  }
  CHECK(eventually([&] {
    const auto stats = cluster.node->mesh().heartbeat(cluster.peer);
    return stats && stats->pings_received > 20;
  }));
  const auto stats = cluster.node->mesh().heartbeat(cluster.peer);
  REQUIRE(stats);
  CHECK(stats->connected);
  CHECK(stats->rtt_mean > 0ns);
  CHECK(stats->phi < 8.0);
  cluster.child.signal(SIGSTOP);
  CHECK(eventually([&] {
    const auto now = cluster.node->mesh().heartbeat(cluster.peer);
    return now && now->phi > 8.0;
  }));
}

TEST_CASE("nothing grows over a million short-lived remote actors", "[cluster]") {
  // TROUPE_SHORT_LIVED sets another number; sanitizer builds take less.
  const char* wanted = std::getenv("TROUPE_SHORT_LIVED");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const std::uint64_t fallback = 20'000;
#else
  const std::uint64_t fallback = 1'000'000;
#endif
  const std::uint64_t total = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : fallback;
  Cluster cluster;
  const auto factory = cluster.find("echo");
  std::atomic<std::uint64_t> finished{0};
  std::atomic<std::uint64_t> failed{0};
  // Keeps `window` actors going: asks for a new one, sends it its only message, forgets it.
  const auto driver = cluster.node->system().spawn([&, factory](caf::event_based_actor* self) {
    const auto left = std::make_shared<std::uint64_t>(total);
    const auto next = std::make_shared<std::function<void()>>();
    self->attach_functor([next] { *next = nullptr; });  // it holds itself
    *next = [=, &finished, &failed] {
      if (*left == 0) {
        return;
      }
      --*left;
      self->request(factory, caf::infinite, caf::ok_atom_v)
          .then(
              [=, &finished, &failed](const caf::actor& made) {
                self->request(made, caf::infinite, std::uint64_t{1})
                    .then(
                        [=, &finished](std::uint64_t) {
                          ++finished;
                          (*next)();
                        },
                        [=, &failed](caf::error&) { ++failed; });
              },
              [=, &failed](caf::error&) { ++failed; });
    };
    return caf::behavior{[=](caf::tick_atom) {
      for (int i = 0; i < 200; ++i) {
        (*next)();
      }
    }};
  });
  caf::anon_send(driver, caf::tick_atom_v);
  REQUIRE(eventually([&] { return finished + failed >= total / 10; }, 100s));
  const auto own = resident_bytes(getpid());
  const auto theirs = resident_bytes(cluster.child.pid());
  REQUIRE(eventually([&] { return finished + failed >= total; }, 250s));
  CHECK(failed == 0);
  CHECK(eventually([&] {
    const auto sizes = cluster.node->mesh().table_sizes(cluster.peer);
    return sizes.pending == 0 && sizes.proxies <= 4 && sizes.exports <= 4;
  }));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(resident_bytes(getpid()) < own + (10U << 20U));
  CHECK(resident_bytes(cluster.child.pid()) < theirs + (10U << 20U));
#endif
  caf::anon_send_exit(driver, caf::exit_reason::user_shutdown);
}
