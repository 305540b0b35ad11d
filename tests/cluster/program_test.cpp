// The program as a user runs it: nodes that talk, certificates that are refused, flags that are wrong.
#include <catch2/catch.hpp>

#include <csignal>
#include <filesystem>

#include "net/certs.hpp"
#include "tests/support/process.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;

namespace {

// A folder that goes when the test ends.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "troupe-test-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

void make_certificates(const std::string& folder, const std::string& cluster,
                       const std::vector<std::string>& names) {
  net::CaOptions ca;
  ca.cluster = cluster;
  REQUIRE(net::create_cluster_ca(folder, ca));
  for (const auto& name : names) {
    net::NodeCertificateOptions node;
    node.name = name;
    node.ips = {"127.0.0.1"};
    REQUIRE(net::issue_node_certificate(folder, node));
  }
}

struct Outcome {
  int code = -1;
  std::string text;
};

Outcome run(std::vector<std::string> words) {
  words.insert(words.begin(), std::string{TROUPE_PROGRAM});
  ChildProcess child{words, true};
  Outcome result;
  result.text = child.read_all();
  result.code = child.wait().value_or(-1);
  return result;
}

// One line on stderr, nothing on stdout.
void check_refused(const Outcome& outcome, const std::string& reason) {
  INFO(outcome.text);
  CHECK(outcome.code != 0);
  CHECK(outcome.text.find(reason) != std::string::npos);
  CHECK(std::count(outcome.text.begin(), outcome.text.end(), '\n') == 1);
}

std::vector<std::string> node_command(std::vector<std::string> more) {
  std::vector<std::string> words{TROUPE_PROGRAM, "node", "--listen", "127.0.0.1:0"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string address_of(ChildProcess& node) {
  while (const auto line = node.read_line()) {
    if (const auto at = line->find("listens on "); at != std::string::npos) {
      return line->substr(at + 11);
    }
  }
  FAIL("the node does not listen");
  return {};
}

}  // namespace

TEST_CASE("two nodes exchange messages and leave on SIGTERM", "[program]") {
  ChildProcess node{node_command({"--name", "alpha"}), true};
  const auto address = address_of(node);
  const auto pong = run({"ping", address, "--count", "100"});
  INFO(pong.text);
  CHECK(pong.code == 0);
  CHECK(pong.text.find("100 requests answered") != std::string::npos);
  node.signal(SIGTERM);
  CHECK(node.wait() == 0);
}

TEST_CASE("nodes started in any order link to each other", "[program]") {
  Folder folder;
  // The address is known only once the second runs: the first is told a port where nobody listens yet.
  ChildProcess probe{node_command({}), true};
  const auto address = address_of(probe);
  probe.signal(SIGTERM);
  REQUIRE(probe.wait() == 0);
  ChildProcess first{node_command({"--name", "first", "--join", address}), true};
  address_of(first);
  ChildProcess second{{TROUPE_PROGRAM, "node", "--listen", address, "--name", "second"}, true};
  address_of(second);
  bool linked = false;
  while (const auto line = second.read_line()) {
    if (line->find("\"first\" is up") != std::string::npos) {
      linked = true;
      break;
    }
  }
  CHECK(linked);
}

TEST_CASE("certificates: good ones talk, others are refused on both sides", "[program]") {
  Folder folder;
  make_certificates(folder / "good", "demo", {"a", "b"});
  make_certificates(folder / "other_ca", "demo", {"b"});
  make_certificates(folder / "other_cluster", "elsewhere", {"b"});
  ChildProcess node{
      node_command({"--name", "a", "--tls", folder / "good", "--cluster-name", "demo"}), true};
  const auto address = address_of(node);
  const auto ping = [&](std::vector<std::string> more) {
    std::vector<std::string> words{"ping", address, "--count", "3", "--name", "b"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  const auto node_says = [&](const std::string& text) {
    while (const auto line = node.read_line(10s)) {
      if (line->find(text) != std::string::npos) {
        return true;
      }
    }
    return false;
  };
  CHECK(ping({"--tls", folder / "good", "--cluster-name", "demo"}).code == 0);
  check_refused(ping({"--tls", folder / "other_ca", "--cluster-name", "demo"}), "certificate");
  CHECK(node_says("refused"));
  check_refused(ping({"--cluster-name", "demo"}), "TLS");
  CHECK(node_says("TLS"));
  check_refused(ping({"--tls", folder / "other_cluster", "--cluster-name", "elsewhere"}),
                "certificate");
  check_refused(ping({"--tls", folder / "good", "--cluster-name", "elsewhere"}), "elsewhere");
  // It still serves.
  CHECK(ping({"--tls", folder / "good", "--cluster-name", "demo"}).code == 0);
}

TEST_CASE("a node that anybody could reach refuses to start without TLS", "[program]") {
  check_refused(run({"node", "--listen", "0.0.0.0:0"}), "TLS");
  check_refused(run({"node", "--listen", "[::]:0"}), "TLS");
  ChildProcess node{{TROUPE_PROGRAM, "node", "--listen", "0.0.0.0:0", "--insecure"}, true};
  CHECK_FALSE(address_of(node).empty());
}

TEST_CASE("wrong arguments give one line and a non-zero exit", "[program]") {
  check_refused(run({"node", "--listen", "nonsense"}), "nonsense");
  check_refused(run({"node", "--listn", "127.0.0.1:0"}), "--listn");
  check_refused(run({"ping", "127.0.0.1:1", "--timeout-ms", "500"}), "127.0.0.1:1");
  check_refused(run({"ping", "127.0.0.1:1", "--count", "0"}), "count");
  check_refused(run({"node", "--tls", "/nonexistent", "--name", "x"}), "/nonexistent");
  check_refused(run({"nod"}), "subcommand");
}
