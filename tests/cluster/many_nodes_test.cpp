// Sixty-four processes on one machine: how fast they find together, and what they cost while nothing happens.
#include <catch2/catch.hpp>

#include <algorithm>
#include <csignal>
#include <memory>
#include <set>
#include <thread>

#include "net/philox.hpp"
#include "tests/cluster/support/node_process.hpp"
#include "tests/support/process.hpp"

using namespace troupe::test;
using namespace std::chrono_literals;

// Programs with a sanitizer in them are several times larger and slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

TEST_CASE("sixty-four processes form one cluster and then hardly cost anything", "[many]") {
  constexpr std::size_t count = 64;
  constexpr auto join_bound = sanitized ? 60s : 15s;
  constexpr std::size_t memory_bound = 30'000'000;
  constexpr auto idle_window = 10s;
  constexpr double cpu_bound = 10.0;  // per cent of one core, all together; the goal is 3
  Folder folder;
  const auto address = free_address();
  std::vector<std::unique_ptr<NodeProcess>> nodes;
  const auto start = Clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    NodeSpec spec;
    spec.name = "n" + std::to_string(i);
    spec.profile = "lan";
    if (i == 0) {
      spec.head = true;
      spec.listen = address;
    } else {
      spec.join = address;
    }
    nodes.push_back(std::make_unique<NodeProcess>(folder, spec));
  }
  const auto started = since(start);
  REQUIRE(nodes.front()->sees_up(count, 60s));
  const auto at_head = since(start);
  for (const auto& node : nodes) {
    REQUIRE(node->sees_up(count, 60s));
  }
  const auto everywhere = since(start);
  std::printf(
      "%zu processes: started in %lld ms, up at the head after %lld ms, everywhere after "
      "%lld ms\n",
      count, static_cast<long long>(started.count()), static_cast<long long>(at_head.count()),
      static_cast<long long>(everywhere.count()));
  CHECK(everywhere < join_bound);

  std::this_thread::sleep_for(1s);  // until what followed the joins has been worked off
  std::size_t most = 0;
  std::size_t all = 0;
  std::chrono::milliseconds used{0};
  std::vector<std::chrono::milliseconds> before;
  for (const auto& node : nodes) {
    most = std::max(most, resident_bytes(node->pid()));
    all += resident_bytes(node->pid());
    before.push_back(cpu_time(node->pid()));
  }
  const auto window = Clock::now();
  std::this_thread::sleep_for(idle_window);
  const auto length = since(window);
  std::chrono::milliseconds of_head{0};
  for (std::size_t i = 0; i < count; ++i) {
    const auto spent = cpu_time(nodes[i]->pid()) - before[i];
    used += spent;
    of_head = i == 0 ? spent : of_head;
  }
  const double percent =
      100.0 * static_cast<double>(used.count()) / static_cast<double>(length.count());
  std::printf(
      "resident: %.1f MB at most, %.1f MB on average; idle: %.1f %% of one core in all, "
      "%.1f %% of it the head\n",
      static_cast<double>(most) / 1e6, static_cast<double>(all) / 1e6 / count, percent,
      100.0 * static_cast<double>(of_head.count()) / static_cast<double>(length.count()));
  CHECK((sanitized || most < memory_bound));
  CHECK((sanitized || percent < cpu_bound));
  for (const auto& node : nodes) {
    REQUIRE(node->running());
  }
  const auto view = nodes.back()->view();
  REQUIRE(view);
  INFO(view->text());
  CHECK(view->count("up") == count);
  CHECK(view->ended.empty());

  // A quarter of them dies at one moment.
  troupe::PhiloxStream random{test_seed("many_nodes"), 1};
  std::set<std::size_t> victims;
  while (victims.size() < count / 4) {
    victims.insert(1 + random.below(count - 1));
  }
  for (const auto i : victims) {
    nodes[i]->signal(SIGKILL);
  }
  const auto killed = Clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    if (victims.count(i) == 0) {
      const bool noticed = nodes[i]->sees_up(count - victims.size(), 30s);
      INFO((nodes[i]->view() ? nodes[i]->view()->text() : "no view"));
      REQUIRE(noticed);
    }
  }
  std::printf("kill -9 of %zu at once: down in all views after %lld ms\n", victims.size(),
              static_cast<long long>(since(killed).count()));
  CHECK(since(killed) < (sanitized ? 20s : 5s));

  // The rest leaves at one moment.
  const auto told = Clock::now();
  for (std::size_t i = 1; i < count; ++i) {
    nodes[i]->signal(victims.count(i) == 0 ? SIGTERM : SIGKILL);
  }
  for (std::size_t i = 1; i < count; ++i) {
    INFO(nodes[i]->err());
    const auto code = nodes[i]->wait(20s);
    CHECK(code == (victims.count(i) == 0 ? 0 : 128 + SIGKILL));
  }
  std::printf("SIGTERM to all workers: the last has ended after %lld ms\n",
              static_cast<long long>(since(told).count()));
  CHECK(nodes.front()->sees_up(1));
}
