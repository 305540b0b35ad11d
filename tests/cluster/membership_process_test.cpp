// Members as processes: they find together in any order, are missed when they die or stop, are not missed when
// they are only busy, and may be restarted as often as one likes.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>
#include <thread>

#include "tests/cluster/support/node_process.hpp"
#include "tests/support/process.hpp"

using namespace troupe::test;
using namespace std::chrono_literals;

namespace {

// What these tests measure is one second on a quiet machine; the bounds leave room for a busy one.
constexpr auto join_bound = 3s;
constexpr auto down_bound = 2s;

NodeSpec worker(const std::string& name, const std::string& join) {
  NodeSpec spec;
  spec.name = name;
  spec.join = join;
  return spec;
}

NodeSpec head_at(const std::string& listen) {
  NodeSpec spec;
  spec.name = "head";
  spec.head = true;
  spec.listen = listen;
  return spec;
}

/// A head and workers "w1" … that are all up.
struct Cluster {
  Folder folder;
  std::string address = free_address();
  std::vector<std::unique_ptr<NodeProcess>> nodes;

  explicit Cluster(std::size_t workers, const std::vector<std::string>& more = {}) {
    auto head = head_at(address);
    head.more = more;
    start(head);
    for (std::size_t i = 1; i <= workers; ++i) {
      start(worker("w" + std::to_string(i), address));
    }
    for (const auto& node : nodes) {
      REQUIRE(node->sees_up(nodes.size()));
    }
  }
  NodeProcess& start(const NodeSpec& spec) {
    nodes.push_back(std::make_unique<NodeProcess>(folder, spec));
    return *nodes.back();
  }
  NodeProcess& head() { return *nodes.front(); }
  NodeProcess& at(std::size_t i) { return *nodes.at(i); }

  /// All but the node `except` hold `state` for the member `name`.
  bool all_see(const std::string& name, const std::string& state, std::chrono::milliseconds bound) {
    return std::all_of(nodes.begin(), nodes.end(), [&](const auto& node) {
      return node->spec().name == name ||
             node->sees([&](const ClusterInfo& info) { return info.state_of(name) == state; },
                        bound);
    });
  }
  std::string text() {
    std::string all;
    for (const auto& node : nodes) {
      const auto view = node->running() ? node->view() : std::nullopt;
      all += node->spec().name + ": " + (view ? view->text() : "no view") + "\n";
    }
    return all;
  }
};

/// Whether a member was ever in one of these states, by the history that the head keeps.
std::size_t count_events(const std::string& head, const std::string& name,
                         const std::string& what) {
  const auto text = http_get(head, "/api/v1/events?limit=10000").value_or("");
  const auto needle = "\"name\":\"" + name + "\"";
  std::size_t count = 0;
  for (std::size_t at = text.find(needle); at != std::string::npos;
       at = text.find(needle, at + 1)) {
    const auto end = text.find('}', at);
    count += text.substr(at, end - at).find("\"what\":\"" + what + "\"") != std::string::npos;
  }
  return count;
}

void print(const char* what, std::chrono::milliseconds took) {
  std::printf("%s: %lld ms\n", what, static_cast<long long>(took.count()));
  std::fflush(stdout);
}

}  // namespace

TEST_CASE("three nodes form one cluster in whatever order they start", "[membership]") {
  std::vector<int> order{0, 1, 2};
  do {
    Folder folder;
    const auto address = free_address();
    std::vector<std::unique_ptr<NodeProcess>> nodes;
    Clock::time_point last;
    for (const int which : order) {
      last = Clock::now();
      auto spec = which == 0 ? head_at(address) : worker("w" + std::to_string(which), address);
      nodes.push_back(std::make_unique<NodeProcess>(folder, spec));
      if (which == 0 || nodes.size() < 3) {
        REQUIRE_FALSE(nodes.back()->address().empty());  // really running before the next starts
      }
    }
    std::set<std::string> clusters;
    for (const auto& node : nodes) {
      INFO(node->spec().name << ": " << node->err());
      REQUIRE(node->sees_up(3));
      clusters.insert(node->view()->cluster_id);
    }
    const auto took = since(last);
    std::printf("order %d%d%d: ", order[0], order[1], order[2]);
    print("one cluster after the last start", took);
    CHECK(took < join_bound);
    CHECK(clusters.size() == 1);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("nodes that wait for their head for long find it within a second", "[membership]") {
  Folder folder;
  const auto address = free_address();
  NodeProcess one{folder, worker("w1", address)};
  NodeProcess two{folder, worker("w2", address)};
  CHECK(one.says("waiting for"));
  std::this_thread::sleep_for(3s);  // until they look as seldom as they ever do
  const auto start = Clock::now();
  NodeProcess head{folder, head_at(address)};
  REQUIRE(one.sees_up(3));
  REQUIRE(two.sees_up(3));
  print("head last, after 3 s", since(start));
  CHECK(since(start) < join_bound);
  // One line says what it waits for, not one for each try.
  CHECK(one.lines_with("waiting for").size() <= 2);
}

TEST_CASE("a killed process is down in all views at once", "[membership]") {
  Cluster cluster{4};
  const auto start = Clock::now();
  cluster.at(2).kill_now();
  REQUIRE(cluster.all_see("w2", "down", 10s));
  const auto took = since(start);
  print("kill -9 of a worker among 5", took);
  INFO(cluster.text());
  CHECK(took < down_bound);
  for (const auto& node : cluster.nodes) {
    if (node->running()) {
      CHECK(node->view()->count("up") == 4);
    }
  }
}

TEST_CASE("in a cluster of two a killed process is down at once as well", "[membership]") {
  Cluster cluster{1};
  const auto start = Clock::now();
  cluster.at(1).kill_now();
  REQUIRE(cluster.all_see("w1", "down", 10s));
  print("kill -9 of the only worker", since(start));
  CHECK(since(start) < down_bound);
}

TEST_CASE("a stopped process is suspect first; woken in time it is the same member",
          "[membership]") {
  Cluster cluster{4, {"--down-after", "5s"}};
  const auto before = *cluster.head().view()->find("w3");
  auto start = Clock::now();
  cluster.at(3).signal(SIGSTOP);
  REQUIRE(cluster.all_see("w3", "suspect", 5s));
  print("SIGSTOP to suspect", since(start));
  CHECK(since(start) < 3s);
  start = Clock::now();
  cluster.at(3).signal(SIGCONT);
  const bool up_again = cluster.all_see("w3", "up", 5s);
  INFO(cluster.text());
  REQUIRE(up_again);
  print("SIGCONT to up", since(start));
  const auto after = *cluster.head().view()->find("w3");
  CHECK(after.id == before.id);
  CHECK(after.incarnation == before.incarnation);
  CHECK(after.pid == before.pid);
  CHECK(cluster.at(3).lines_with("is over").empty());
}

TEST_CASE("a stopped process goes down after the set time; woken it joins anew", "[membership]") {
  Cluster cluster{4};
  const auto before = *cluster.head().view()->find("w3");
  auto start = Clock::now();
  cluster.at(3).signal(SIGSTOP);
  REQUIRE(cluster.all_see("w3", "suspect", 5s));
  const auto suspected = since(start);
  REQUIRE(cluster.all_see("w3", "down", 10s));
  const auto took = since(start);
  print("SIGSTOP to down (down_after 1500 ms)", took);
  CHECK(took - suspected > 1s);
  CHECK(took < 6s);
  start = Clock::now();
  cluster.at(3).signal(SIGCONT);
  const bool back = cluster.all_see("w3", "up", 10s);
  INFO(cluster.text());
  INFO(cluster.at(3).err());
  REQUIRE(back);
  print("SIGCONT to a new incarnation", since(start));
  const auto after = *cluster.head().view()->find("w3");
  CHECK(after.incarnation > before.incarnation);
  CHECK(after.pid == before.pid);
  CHECK(cluster.at(3).running());
  CHECK(cluster.at(3).lines_with("is over").size() == 1);
  CHECK(cluster.at(3).metric("troupe_fenced_total") == 1);
}

TEST_CASE("a member whose threads are all busy is not suspected", "[membership]") {
  const int seconds = std::getenv("TROUPE_TEST_LONG") != nullptr ? 60 : 15;
  Cluster cluster{3};
  auto spec = worker("busy", cluster.address);
  spec.member = true;
  spec.more = {"--burn", std::to_string(seconds), "--slots", "4"};
  auto& busy = cluster.start(spec);
  REQUIRE(busy.says("burning"));
  const auto start = Clock::now();
  double worst = 0;
  while (!busy.says("burned", 1s)) {
    REQUIRE(since(start) < std::chrono::seconds{seconds + 30});
    for (const auto& node : cluster.nodes) {
      const auto view = node->view();
      if (view) {
        INFO(view->text());
        CHECK(view->state_of("busy") == "up");
      } else {
        CHECK(node->spec().name == "busy");  // it may be late with an answer
      }
    }
    const auto asked = Clock::now();
    // Control does not share a thread with the user's work: the node answers.
    CHECK(http_get(busy.address(), "/api/v1/events?limit=1").has_value());
    worst = std::max(worst, static_cast<double>(since(asked).count()));
  }
  std::printf("busy for %d s; its answers about the history took %.0f ms at most\n", seconds,
              worst);
  CHECK(busy.metric("troupe_fenced_total") == 0);
  for (const auto& name : {"busy", "w1", "w2", "w3", "head"}) {
    INFO(name);
    CHECK(count_events(cluster.address, name, "suspect") == 0);
    CHECK(count_events(cluster.address, name, "down") == 0);
  }
}

TEST_CASE("restarted a hundred times at the same address there is always one", "[membership]") {
  constexpr int rounds = 100;
  Cluster cluster{1};
  auto spec = worker("again", cluster.address);
  spec.listen = free_address();
  auto node = std::make_unique<NodeProcess>(cluster.folder, spec);
  std::set<std::uint64_t> incarnations;
  std::chrono::milliseconds slowest{0};
  const auto live_there = [&](const ClusterInfo& info) {
    return std::count_if(info.nodes.begin(), info.nodes.end(),
                         [&](const auto& member) { return member.address == spec.listen; });
  };
  for (int round = 0; round < rounds; ++round) {
    const auto start = Clock::now();
    std::int64_t wrong = 0;
    const bool seen = cluster.head().sees(
        [&](const ClusterInfo& info) {
          wrong += live_there(info) > 1 ? 1 : 0;
          const auto* member = info.find("again");
          return member != nullptr && member->state == "up" && member->pid == node->pid();
        },
        10s);
    INFO("round " << round << "\n" << cluster.text() << node->err());
    REQUIRE(seen);
    slowest = std::max(slowest, since(start));
    CHECK(wrong == 0);
    const auto view = cluster.head().view();
    REQUIRE(view);
    REQUIRE(view->find("again") != nullptr);
    CHECK(incarnations.insert(view->find("again")->incarnation).second);
    CHECK(live_there(*view) == 1);
    node->kill_now();
    if (round % 2 == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds{round % 90});
    }
    node = std::make_unique<NodeProcess>(cluster.folder, spec);
  }
  REQUIRE(cluster.head().sees_up(3));
  REQUIRE(cluster.at(1).sees_up(3));
  std::printf("%d restarts, the slowest was up after %lld ms\n", rounds,
              static_cast<long long>(slowest.count()));
  CHECK(cluster.head().metric("troupe_broker_tombstones") == rounds);
  CHECK(incarnations.size() == rounds);
}
