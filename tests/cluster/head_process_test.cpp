// The head: what happens to members, requests and views while it is away, who may be head, and how a node leaves.
#include <catch2/catch.hpp>

#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <sstream>
#include <thread>

#include "net/http_client.hpp"
#include "tests/cluster/support/node_process.hpp"
#include "tests/support/process.hpp"

using namespace troupe::test;
using namespace std::chrono_literals;

namespace {

constexpr auto answer_bound = 2500ms;  // the promise is 2 s; the rest is the start of the process

NodeSpec head_spec(const std::string& listen, const std::string& data,
                   const std::string& name = "head") {
  NodeSpec spec;
  spec.name = name;
  spec.head = true;
  spec.listen = listen;
  spec.data = data;
  return spec;
}

NodeSpec worker(const std::string& name, const std::string& join) {
  NodeSpec spec;
  spec.name = name;
  spec.join = join;
  return spec;
}

NodeSpec member(const std::string& name, const std::string& join,
                const std::vector<std::string>& more) {
  auto spec = worker(name, join);
  spec.member = true;
  spec.more = more;
  return spec;
}

struct Calls {
  std::uint64_t answered = 0;
  std::uint64_t failed = 0;
  std::int64_t longest_ms = 0;
};

/// The last report of a caller.
Calls calls_of(const NodeProcess& node) {
  Calls calls;
  std::istringstream in{node.out()};
  for (std::string line; std::getline(in, line);) {
    std::istringstream words{line};
    std::string word;
    std::string path;
    if (words >> word && word == "calls") {
      words >> path >> calls.answered >> calls.failed >> calls.longest_ms;
    }
  }
  return calls;
}

std::map<std::string, std::uint64_t> incarnations(const ClusterInfo& info) {
  std::map<std::string, std::uint64_t> result;
  for (const auto& member : info.nodes) {
    result[member.name] = member.incarnation;
  }
  return result;
}

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

RunResult run_troupe(const Folder& folder, std::vector<std::string> words) {
  words.insert(words.begin(), TROUPE_PROGRAM);
  return run_program(folder, words);
}

/// One line on standard error with `reason` in it, in time, and exit code 1.
void check_fails(const RunResult& result, const std::string& reason) {
  INFO(result.err << result.out << "took " << result.took.count() << " ms");
  CHECK(result.code == 1);
  CHECK(result.out.empty());
  CHECK(lines(result.err) == 1);
  CHECK(result.err.find(reason) != std::string::npos);
  CHECK(result.took < answer_bound);
}

void check_all_fail(const Folder& folder, const std::string& address, const std::string& reason) {
  check_fails(run_troupe(folder, {"status", "--cluster", address}), reason);
  check_fails(run_troupe(folder, {"events", "--cluster", address}), reason);
  check_fails(run_troupe(folder, {"drain", "someone", "--cluster", address}), reason);
}

}  // namespace

TEST_CASE("the head dies under load and comes back: nobody else notices", "[head]") {
  Folder folder;
  const auto address = free_address();
  const auto spec = head_spec(address, folder / "data");
  auto head = std::make_unique<NodeProcess>(folder, spec);
  NodeProcess one{folder, member("one", address, {"--host", "a/one", "--call", "a/two"})};
  NodeProcess two{folder, member("two", address, {"--host", "a/two", "--call", "a/one"})};
  NodeProcess idle{folder, worker("idle", address)};
  REQUIRE(head->sees_up(4));
  const auto before = *head->view();
  REQUIRE(eventually([&] { return calls_of(one).answered > 50 && calls_of(two).answered > 50; }));

  head->kill_now();
  const auto killed = Clock::now();
  const auto answered = calls_of(one).answered;
  // Nobody may wait for the head: this is about what goes on in the time it is away.
  std::this_thread::sleep_for(5s);
  CHECK(calls_of(one).answered > answered + 500);
  head = std::make_unique<NodeProcess>(folder, spec);
  const auto all_back = [](const ClusterInfo& info) { return info.count("up") == 4; };
  REQUIRE(head->sees(all_back));
  for (const auto* node : {&one, &two, &idle}) {
    REQUIRE(node->sees([&](const ClusterInfo& info) { return info.term == 2 && all_back(info); }));
  }
  std::printf("head back after %lld ms, all members %lld ms after the kill\n", 5000LL,
              static_cast<long long>(since(killed).count()));
  const auto after = *head->view();
  INFO(before.text() << "\n" << after.text());
  INFO(one.err() << two.err() << idle.err());
  CHECK(after.cluster_id == before.cluster_id);
  CHECK(after.epoch > before.epoch);
  auto was = incarnations(before);
  auto is = incarnations(after);
  CHECK(is["head"] > was["head"]);
  was.erase("head");
  is.erase("head");
  CHECK(is == was);
  for (const auto* node : {&one, &two, &idle}) {
    CHECK(node->metric("troupe_fenced_total") == 0);
    CHECK(node->metric("troupe_broker_reconnects_total") == 1);
  }
  // It goes on beyond the grace time, in which the broker forgives everything.
  std::this_thread::sleep_for(7s);
  for (const auto* node : {&one, &two}) {
    const auto calls = calls_of(*node);
    std::printf("%s: %llu requests, %llu failed, longest pause %lld ms\n",
                node->spec().name.c_str(), static_cast<unsigned long long>(calls.answered),
                static_cast<unsigned long long>(calls.failed),
                static_cast<long long>(calls.longest_ms));
    CHECK(calls.failed == 0);
    CHECK(calls.longest_ms < 1000);
    CHECK(node->out().find("lost") == std::string::npos);
    CHECK(node->out().find("fenced") == std::string::npos);
  }
  CHECK(incarnations(*head->view()) == incarnations(after));
  CHECK(head->view()->count("up") == 4);
}

TEST_CASE("a head that comes back at another port is found", "[head]") {
  Folder folder;
  const auto first = free_address();
  const auto second = free_address();
  auto head = std::make_unique<NodeProcess>(folder, head_spec(first, folder / "data"));
  NodeProcess one{folder, worker("one", first)};
  NodeProcess two{folder, worker("two", first + "," + second)};
  REQUIRE(head->sees_up(3));
  const auto before = *head->view();
  head->kill_now();
  REQUIRE(one.says("is lost"));
  const auto start = Clock::now();
  head = std::make_unique<NodeProcess>(folder, head_spec(second, folder / "data"));
  const bool back = head->sees_up(3, 10s);
  INFO((head->view() ? head->view()->text() : "no view") << "\n" << one.err() << two.err());
  REQUIRE(back);
  std::printf("members are back at the new port after %lld ms\n",
              static_cast<long long>(since(start).count()));
  const auto after = *head->view();
  CHECK(after.cluster_id == before.cluster_id);
  CHECK(after.broker_address == second);
  CHECK(incarnations(after)["one"] == incarnations(before)["one"]);
  CHECK(incarnations(after)["two"] == incarnations(before)["two"]);
  REQUIRE(one.sees([&](const ClusterInfo& info) { return info.broker_address == second; }));
}

TEST_CASE("a member that dies while the head is away is missed after the grace time", "[head]") {
  Folder folder;
  const auto address = free_address();
  const auto spec = head_spec(address, folder / "data");
  auto head = std::make_unique<NodeProcess>(folder, spec);
  NodeProcess stays{folder, worker("stays", address)};
  NodeProcess dies{folder, worker("dies", address)};
  REQUIRE(head->sees_up(3));
  head->kill_now();
  dies.kill_now();
  head = std::make_unique<NodeProcess>(folder, spec);
  const bool down = head->sees(
      [](const ClusterInfo& info) {
        return info.state_of("dies") == "down" && info.count("up") == 2;
      },
      20s);
  INFO((head->view() ? head->view()->text() : "no view"));
  CHECK(down);
}

TEST_CASE("a head that was stopped does not take its members for dead when it wakes", "[head]") {
  Folder folder;
  const auto address = free_address();
  NodeProcess head{folder, head_spec(address, folder / "data")};
  std::vector<std::unique_ptr<NodeProcess>> workers;
  for (int i = 1; i <= 4; ++i) {
    workers.push_back(
        std::make_unique<NodeProcess>(folder, worker("w" + std::to_string(i), address)));
  }
  REQUIRE(head.sees_up(5));
  const auto before = *head.view();
  head.signal(SIGSTOP);
  // Beyond all times of the profile: heartbeats, suspicion, lease.
  for (const auto& node : workers) {
    REQUIRE(node->says("was not heard for the lease time"));
  }
  std::this_thread::sleep_for(3s);
  head.signal(SIGCONT);
  const auto start = Clock::now();
  for (const auto& node : workers) {
    const bool back = eventually([&] { return node->metric("troupe_joined") == 1; }, 10s);
    INFO(node->err());
    REQUIRE(back);
  }
  REQUIRE(head.sees_up(5));
  std::printf("all back %lld ms after the head woke\n",
              static_cast<long long>(since(start).count()));
  std::this_thread::sleep_for(
      3s);  // suspicion that began with the waking would have its effect by now
  const auto after = *head.view();
  INFO(before.text() << "\n" << after.text() << "\n" << head.err());
  CHECK(after.count("up") == 5);
  CHECK(incarnations(after) == incarnations(before));
  for (const auto& node : workers) {
    INFO(node->err());
    CHECK(node->metric("troupe_fenced_total") == 0);
  }
}

TEST_CASE("a cluster has one head", "[head]") {
  Folder folder;
  const auto address = free_address();
  NodeProcess head{folder, head_spec(address, folder / "data")};
  NodeProcess one{folder, worker("one", address)};
  REQUIRE(head.sees_up(2));
  const auto epoch = head.view()->epoch;
  for (const auto& join : {address, one.address()}) {
    auto spec = member("second", join, {"--second-head"});
    spec.data = folder / "other-data";
    NodeProcess second{folder, spec};
    CHECK(second.wait(10s) == 1);
    INFO(second.err());
    const auto said = complaints(second.err());
    REQUIRE(said.size() == 1);
    CHECK(said[0].find("has a head already") != std::string::npos);
    CHECK(said[0].find(address) != std::string::npos);
  }
  CHECK(head.view()->epoch == epoch);
  CHECK(head.view()->nodes.size() == 2);
}

TEST_CASE("a second head as a command is refused with one line", "[head]") {
  Folder folder;
  const auto address = free_address();
  NodeProcess head{folder, head_spec(address, folder / "data")};
  REQUIRE(head.sees_up(1));
  auto spec = head_spec("127.0.0.1:0", folder / "other", "second");
  spec.join = address;
  NodeProcess second{folder, spec};
  const auto code = second.wait(10s);
  INFO(second.err());
  CHECK(code == 1);
  const auto said = complaints(second.err());
  REQUIRE(said.size() == 1);
  CHECK(said[0].find("has a head already") != std::string::npos);
}

TEST_CASE("of two heads with one data folder one wins, the other says why", "[head]") {
  Folder folder;
  for (int round = 0; round < 5; ++round) {
    const auto data = folder / ("data-" + std::to_string(round));
    NodeProcess a{folder, head_spec("127.0.0.1:0", data, "a")};
    NodeProcess b{folder, head_spec("127.0.0.1:0", data, "b")};
    REQUIRE(eventually([&] { return !a.running() || !b.running(); }));
    auto& winner = a.running() ? a : b;
    auto& loser = a.running() ? b : a;
    INFO(a.err() << b.err());
    REQUIRE(winner.running());
    CHECK(winner.sees_up(1));
    CHECK(loser.wait() == 1);
    const auto said = complaints(loser.err());
    REQUIRE(said.size() == 1);
    CHECK(said[0].find(std::to_string(winner.pid())) != std::string::npos);
    CHECK(said[0].find(data) != std::string::npos);
  }
}

TEST_CASE("SIGTERM: the node leaves and ends with 0", "[head][leave]") {
  Folder folder;
  const auto address = free_address();
  NodeProcess head{folder, head_spec(address, folder / "data")};
  NodeProcess one{folder, worker("one", address)};
  NodeProcess two{folder, worker("two", address)};
  REQUIRE(two.sees_up(3));
  const auto start = Clock::now();
  one.signal(SIGTERM);
  CHECK(one.wait(10s) == 0);
  std::printf("left after %lld ms\n", static_cast<long long>(since(start).count()));
  for (const auto* node : {&head, &two}) {
    CHECK(node->sees([](const ClusterInfo& info) {
      return info.state_of("one") == "left" && info.count("up") == 2;
    }));
  }
  CHECK(complaints(one.err()).empty());
  two.signal(SIGINT);
  CHECK(two.wait(10s) == 0);
  CHECK(head.sees([](const ClusterInfo& info) { return info.state_of("two") == "left"; }));
  head.signal(SIGTERM);
  CHECK(head.wait(10s) == 0);
  INFO(head.err());
  CHECK(complaints(head.err()).empty());
}

TEST_CASE("SIGTERM before it has joined ends a node as well", "[head][leave]") {
  Folder folder;
  NodeProcess alone{folder, worker("alone", free_address())};
  REQUIRE(alone.says("waiting for"));
  alone.signal(SIGTERM);
  CHECK(alone.wait(10s) == 0);
}

TEST_CASE("`troupe drain`: hosted things end, the node leaves", "[head][leave]") {
  Folder folder;
  const auto address = free_address();
  NodeProcess head{folder, head_spec(address, folder / "data")};
  NodeProcess one{folder, member("one", address, {"--host", "a/one"})};
  NodeProcess two{folder, worker("two", address)};
  REQUIRE(two.sees_up(3));
  REQUIRE(one.says("granted a/one"));
  // Through a node that is not the head.
  const auto result = run_troupe(folder, {"drain", "one", "--cluster", two.address(), "--wait"});
  INFO(result.err << result.out);
  CHECK(result.code == 0);
  CHECK(one.wait(10s) == 0);
  CHECK(one.out().find("lost a/one") != std::string::npos);
  CHECK(two.sees([](const ClusterInfo& info) { return info.state_of("one") == "left"; }));
  const auto events = run_troupe(folder, {"events", "--cluster", address});
  CHECK(events.code == 0);
  CHECK(events.out.find("draining") != std::string::npos);
  CHECK(events.out.find("left") != std::string::npos);
  const auto unknown = run_troupe(folder, {"drain", "nobody", "--cluster", address});
  CHECK(unknown.code == 1);
  CHECK(lines(unknown.err) == 1);
}

TEST_CASE("a second signal ends a draining node at once", "[head][leave]") {
  Folder folder;
  const auto address = free_address();
  NodeProcess head{folder, head_spec(address, folder / "data")};
  auto spec = worker("slow", address);
  NodeProcess slow{folder, spec};
  REQUIRE(head.sees_up(2));
  // The broker does not take the farewell, so the drain takes its time.
  head.signal(SIGSTOP);
  slow.signal(SIGTERM);
  REQUIRE(slow.says("draining"));
  const auto start = Clock::now();
  slow.signal(SIGTERM);
  CHECK(slow.wait(10s) == 128 + SIGTERM);
  CHECK(since(start) < 1s);
  head.signal(SIGCONT);
}

TEST_CASE("questions are answered in time, or the reason is told", "[head][cli]") {
  Folder folder;
  check_all_fail(folder, free_address(), "refused");

  NodeProcess lonely{folder, worker("lonely", free_address())};
  REQUIRE_FALSE(lonely.address().empty());
  REQUIRE(lonely.says("waiting for"));
  check_all_fail(folder, lonely.address(), "waiting for");

  const auto address = free_address();
  NodeProcess head{folder, head_spec(address, folder / "data")};
  NodeProcess one{folder, worker("one", address)};
  REQUIRE(one.sees_up(2));
  const auto status = run_troupe(folder, {"status", "--cluster", one.address(), "--json"});
  CHECK(status.code == 0);
  CHECK(parse_cluster(status.out).has_value());
  CHECK(status.took < answer_bound);
  CHECK(run_troupe(folder, {"events", "--cluster", one.address()}).code == 0);

  one.signal(SIGSTOP);
  check_all_fail(folder, one.address(), one.address());
  one.signal(SIGCONT);

  // The view is there, but nobody who could write or read the history.
  REQUIRE(head.sees_up(2));
  head.signal(SIGSTOP);
  const auto events = run_troupe(folder, {"events", "--cluster", one.address()});
  INFO(events.err);
  CHECK(events.code == 1);
  CHECK(lines(events.err) == 1);
  CHECK(events.took < answer_bound);
  CHECK(run_troupe(folder, {"status", "--cluster", one.address()}).code == 0);
  head.signal(SIGCONT);
}

TEST_CASE("readiness says whether a node has joined", "[head]") {
  Folder folder;
  const auto address = free_address();
  NodeProcess one{folder, worker("one", address)};
  REQUIRE_FALSE(one.address().empty());
  CHECK(http_get(one.address(), "/livez").has_value());
  CHECK_FALSE(http_get(one.address(), "/readyz").has_value());
  NodeProcess head{folder, head_spec(address, folder / "data")};
  CHECK(eventually([&] { return http_get(one.address(), "/readyz").has_value(); }));
}
