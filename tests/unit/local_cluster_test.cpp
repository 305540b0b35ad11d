// `troupe local` with stand-ins for its nodes: who is started how, what is forwarded, and that nobody is
// left when it ends.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "runtime/cli/local_cluster.hpp"
#include "tests/support/process.hpp"
#include "tests/unit/tls_support.hpp"

using namespace troupe;
using namespace troupe::cli;
using namespace std::chrono_literals;

namespace {

// Each stand-in leaves its pid in FOLDER/pids; the head serves these as the nodes of the cluster.
constexpr const char* stand_in = R"(#!/usr/bin/env python3
import http.server, json, os, pathlib, signal, sys, threading
folder = pathlib.Path(__file__).parent
words = sys.argv[1:]
name = words[words.index("--name") + 1]
mode = (folder / name).read_text() if (folder / name).exists() else ""
(folder / (name + ".words")).write_text("\n".join(words))
if mode == "die":
    print("dying", file=sys.stderr)
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "stubborn" else lambda *a: os._exit(0))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        pids = [int(p.name) for p in (folder / "pids").iterdir()]
        body = json.dumps({"nodes": [{"pid": p, "state": "up"} for p in pids], "ended": []})
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())
    def log_message(self, *arguments):
        pass
print("hello from " + name, flush=True)
if "--head" in words:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port_file = pathlib.Path(words[words.index("--port-file") + 1])
    temporary = port_file.with_suffix(".tmp")
    temporary.write_text(str(server.server_address[1]) + "\n")
    temporary.rename(port_file)
(folder / "pids" / str(os.getpid())).touch()
if "--head" in words:
    server.serve_forever()
while True:
    signal.pause()
)";

/// The function in a process of its own, as the command runs it.
class Local {
 public:
  explicit Local(unsigned count) {
    options.count = count;
    options.program = (folder.path() / "stand_in.py").string();
    options.leave_within = 10s;
    std::ofstream{options.program} << stand_in;
    std::filesystem::permissions(options.program, std::filesystem::perms::owner_all);
    std::filesystem::create_directory(folder.path() / "pids");
  }
  ~Local() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  void set_mode(const std::string& name, const std::string& mode) {
    std::ofstream{folder.path() / name} << mode;
  }

  void start() {
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto redirect = [&](const char* file, int number) {
        ::dup2(::creat((folder.path() / file).c_str(), 0600), number);
      };
      redirect("out", STDOUT_FILENO);
      redirect("err", STDERR_FILENO);
      ::setenv("TMPDIR", folder.path().c_str(), 1);
      ::setenv("TROUPE_JOIN", "nobody:1", 1);
      spdlog::set_default_logger(spdlog::stderr_logger_mt("local"));
      const auto problem = run_local_cluster(options);
      std::ofstream{folder.path() / "problem"} << problem.text();
      ::_exit(problem ? 1 : 0);
    }
    REQUIRE(pid_ > 0);
  }

  bool is_up() {
    return test::eventually([&] { return !read("out").empty(); }, 60s);
  }

  void signal(int number) { ::kill(pid_, number); }

  int wait() {
    int status = -1;
    REQUIRE(test::eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, 60s));
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::string read(const std::string& file) const {
    std::ifstream in{folder.path() / file};
    return {std::istreambuf_iterator<char>{in}, {}};
  }

  std::vector<pid_t> pids() const {
    std::vector<pid_t> out;
    for (const auto& entry : std::filesystem::directory_iterator{folder.path() / "pids"}) {
      out.push_back(std::stoi(entry.path().filename().string()));
    }
    return out;
  }

  bool all_gone() const {
    const auto all = pids();
    return std::all_of(all.begin(), all.end(), [](pid_t pid) {
      // A process whose parent died first waits for init to take note of its end.
      std::ifstream stat{"/proc/" + std::to_string(pid) + "/stat"};
      std::string text{std::istreambuf_iterator<char>{stat}, {}};
      const auto state = text.rfind(") ");
      return state == std::string::npos || text[state + 2] == 'Z';
    });
  }

  bool no_temporary_left() const {
    for (const auto& entry : std::filesystem::directory_iterator{folder.path()}) {
      if (entry.path().filename().string().find("troupe-local-") == 0) {
        return false;
      }
    }
    return true;
  }

  bool contains(const std::string& file, const std::string& text) const {
    const auto all = read(file);
    UNSCOPED_INFO(file << ": " << all);
    return all.find(text) != std::string::npos;
  }

  net::test::TempDir folder;
  LocalOptions options;

 private:
  pid_t pid_ = -1;
};

}  // namespace

TEST_CASE("a local cluster starts, forwards what its nodes say, and leaves nothing", "[local]") {
  Local local{3};
  local.options.node_flags = {"--cluster-name", "demo"};
  local.start();
  REQUIRE(local.is_up());
  CHECK(local.contains("out", "3 nodes are up; troupe status --cluster 127.0.0.1:"));
  for (const char* name : {"node-0", "node-1", "node-2"}) {
    CHECK(local.contains("err", std::string{"["} + name + "] hello from " + name + "\n"));
    CHECK(local.contains(std::string{name} + ".words", "--cluster-name\ndemo"));
  }
  CHECK(local.contains("node-0.words", "--head\n"));
  CHECK(local.contains("node-1.words", "--join\n127.0.0.1:"));
  local.signal(SIGTERM);
  CHECK(local.wait() == 0);
  CHECK(local.pids().size() == 3);
  CHECK(local.all_gone());
  CHECK(local.no_temporary_left());
}

TEST_CASE("a child that is killed is told and the others go on; without the head it ends",
          "[local]") {
  Local local{3};
  local.start();
  REQUIRE(local.is_up());
  const auto pid_of = [&](const std::string& name) {
    for (const auto pid : local.pids()) {
      std::ifstream in{"/proc/" + std::to_string(pid) + "/cmdline"};
      const std::string text{std::istreambuf_iterator<char>{in}, {}};
      if (text.find(name + std::string(1, '\0')) != std::string::npos) {
        return pid;
      }
    }
    return pid_t{-1};
  };
  REQUIRE(pid_of("node-1") > 0);
  ::kill(pid_of("node-1"), SIGKILL);
  CHECK(test::eventually([&] { return local.read("err").find("signal 9") != std::string::npos; }));
  REQUIRE(pid_of("node-2") > 0);
  REQUIRE(pid_of("node-0") > 0);
  ::kill(pid_of("node-0"), SIGKILL);
  CHECK(local.wait() == 1);
  CHECK(local.contains("problem", "the head, node-0, was killed by signal 9"));
  CHECK(local.all_gone());
}

TEST_CASE("one that does not leave is killed in the end, by a second signal at once", "[local]") {
  Local local{2};
  local.set_mode("node-1", "stubborn");
  local.options.leave_within = 300ms;
  SECTION("in the end") {
    local.start();
    REQUIRE(local.is_up());
    local.signal(SIGINT);
  }
  SECTION("by a second signal") {
    local.options.leave_within = 10min;
    local.start();
    REQUIRE(local.is_up());
    local.signal(SIGINT);
    local.signal(SIGTERM);
  }
  CHECK(local.wait() == 1);
  CHECK(local.contains("problem", "node-1 was killed by signal 9"));
  CHECK(local.all_gone());
}

TEST_CASE("a node that ends during the start ends it all", "[local]") {
  Local local{3};
  local.set_mode("node-2", "die");
  local.start();
  CHECK(local.wait() == 1);
  CHECK(local.contains("problem", "node-2 ended with exit status 3 during the start"));
  CHECK(local.contains("err", "[node-2] dying\n"));
  CHECK(local.all_gone());
  CHECK(local.no_temporary_left());
}

TEST_CASE("nodes that do not find together are given up", "[local]") {
  Local local{2};
  local.options.start_within = 1s;
  std::filesystem::remove(local.folder.path() /
                          "pids");  // no stand-in gets to the end of its start
  local.start();
  CHECK(local.wait() == 1);
  CHECK_FALSE(local.read("problem").empty());
  std::filesystem::create_directory(local.folder.path() / "pids");
}

TEST_CASE("the children die with their parent", "[local]") {
  Local local{3};
  local.start();
  REQUIRE(local.is_up());
  local.signal(SIGKILL);
  CHECK(local.wait() == 128 + SIGKILL);
  CHECK(test::eventually([&] { return local.all_gone(); }));
}
