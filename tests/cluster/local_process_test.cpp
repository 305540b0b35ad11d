// `troupe local N` with real nodes: one command starts a cluster, Ctrl-C ends it, and nothing is left behind.
#include <catch2/catch.hpp>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <thread>

#include "tests/cluster/support/node_process.hpp"
#include "tests/support/process.hpp"

using namespace troupe::test;
using namespace std::chrono_literals;

namespace {

/// Gone, or only waiting for its parent to take note.
bool is_gone(std::int64_t pid) {
  std::ifstream stat{"/proc/" + std::to_string(pid) + "/stat"};
  const std::string text{std::istreambuf_iterator<char>{stat}, {}};
  const auto state = text.rfind(") ");
  return state == std::string::npos || text[state + 2] == 'Z';
}

struct Local {
  Folder folder;
  LoggedProcess process;
  std::string address;
  std::vector<std::int64_t> pids;

  explicit Local(const std::vector<std::string>& more)
      : process{folder / "local", command(more), {"TMPDIR=" + (folder / "")}} {
    const bool up = process.says("--cluster ", 30s);
    INFO(process.err());
    REQUIRE(up);
    const auto out = process.out();
    const auto at = out.find("--cluster ") + 10;
    address = out.substr(at, out.find('\n', at) - at);
    const auto view = parse_cluster(http_get(address, "/api/v1/cluster").value_or(""));
    REQUIRE(view);
    for (const auto& member : view->nodes) {
      pids.push_back(member.pid);
      CHECK(member.state == "up");
    }
  }

  static std::vector<std::string> command(const std::vector<std::string>& more) {
    std::vector<std::string> words{TROUPE_PROGRAM, "local"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  bool all_gone(std::chrono::milliseconds bound) {
    return eventually([&] { return std::all_of(pids.begin(), pids.end(), is_gone); }, bound);
  }

  bool temporary_left() const {
    for (const auto& entry : std::filesystem::directory_iterator{folder / ""}) {
      if (entry.path().filename().string().rfind("troupe-local-", 0) == 0) {
        return true;
      }
    }
    return false;
  }
};

}  // namespace

TEST_CASE("a local cluster is up with one command and ends with Ctrl-C", "[local][process]") {
  const auto start = Clock::now();
  Local local{{"5", "--listen", "127.0.0.1:0"}};
  std::printf("5 nodes are up after %lld ms\n", static_cast<long long>(since(start).count()));
  CHECK(local.pids.size() == 5);
  const auto status =
      run_program(local.folder, {TROUPE_PROGRAM, "status", "--cluster", local.address});
  CHECK(status.code == 0);
  CHECK(std::count(status.out.begin(), status.out.end(), '\n') >= 6);
  const auto told = Clock::now();
  local.process.signal(SIGINT);
  CHECK(local.process.wait(20s) == 0);
  std::printf("ended %lld ms after Ctrl-C\n", static_cast<long long>(since(told).count()));
  CHECK(since(told) < 5s);
  CHECK(local.all_gone(2s));
  CHECK_FALSE(local.temporary_left());
  INFO(local.process.err());
  CHECK(local.process.lines_with("[error]").empty());
  CHECK(local.process.lines_with("[warning]").empty());
}

TEST_CASE("the nodes of a local cluster die with their parent", "[local][process]") {
  Local local{{"4", "--listen", "127.0.0.1:0"}};
  CHECK(local.pids.size() == 4);
  local.process.kill_now();
  CHECK(local.all_gone(5s));
}

TEST_CASE("a node of a local cluster that is killed leaves the view", "[local][process]") {
  Local local{{"4", "--listen", "127.0.0.1:0"}};
  const auto view = parse_cluster(http_get(local.address, "/api/v1/cluster").value_or(""));
  REQUIRE(view);
  const auto* victim = view->find("node-2");
  REQUIRE(victim != nullptr);
  ::kill(static_cast<pid_t>(victim->pid), SIGKILL);
  CHECK(eventually([&] {
    const auto now = parse_cluster(http_get(local.address, "/api/v1/cluster").value_or(""));
    return now && now->state_of("node-2") == "down" && now->count("up") == 3;
  }));
  local.process.signal(SIGINT);
  CHECK(local.process.wait(20s).has_value());
  CHECK(local.all_gone(2s));
}

TEST_CASE("a second Ctrl-C ends a local cluster at once", "[local][process]") {
  Local local{{"3", "--listen", "127.0.0.1:0"}};
  const auto view = parse_cluster(http_get(local.address, "/api/v1/cluster").value_or(""));
  REQUIRE(view);
  // It cannot leave.
  ::kill(static_cast<pid_t>(view->find("node-1")->pid), SIGSTOP);
  local.process.signal(SIGINT);
  std::this_thread::sleep_for(100ms);
  const auto start = Clock::now();
  local.process.signal(SIGINT);
  CHECK(local.process.wait(20s).has_value());
  CHECK(since(start) < 3s);
  CHECK(local.all_gone(2s));
}
