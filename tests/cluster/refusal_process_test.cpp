// Who does not belong to a cluster is told so in one line and ends; the cluster tells in one line whom it refused, and
// goes on as if nothing had been.
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>

#include "net/certs.hpp"
#include "tests/cluster/support/intruder.hpp"
#include "tests/cluster/support/node_process.hpp"
#include "tests/support/process.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;

namespace {

void make_ca(const std::string& folder, const std::string& cluster) {
  net::CaOptions ca;
  ca.cluster = cluster;
  REQUIRE(net::create_cluster_ca(folder, ca));
}

void issue(const std::string& folder, const std::string& name, net::Validity validity = {30}) {
  net::NodeCertificateOptions node;
  node.name = name;
  node.ips = {"127.0.0.1"};
  node.validity = validity;
  REQUIRE(net::issue_node_certificate(folder, node));
}

std::uint16_t port_of(const std::string& address) {
  return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

/// What a node answers to a peer that speaks versions 77 to 78 only: the upgrade, and its refusal.
std::string answer_to_version_77(const std::string& address, const std::string& cluster) {
  Intruder intruder{port_of(address)};
  REQUIRE(intruder.connected());
  const auto id = NodeId::random();
  auto hello = plausible_hello(id, cluster, 7);
  hello.version_min = 77;
  hello.version_max = 78;
  REQUIRE(intruder.send(upgrade_request(id, cluster)));
  REQUIRE(intruder.send(hello_bytes(hello)));
  while (intruder.read_some(10s)) {
  }
  CHECK(intruder.ended());
  return intruder.input();
}

/// Accepts connections and answers each, once it has said something, with `bytes`.
class Parrot {
 public:
  explicit Parrot(std::string bytes) : bytes_(std::move(bytes)) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof where;
    REQUIRE(::bind(fd_, reinterpret_cast<const sockaddr*>(&where), size) == 0);
    REQUIRE(::listen(fd_, 16) == 0);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&where), &size);
    address_ = "127.0.0.1:" + std::to_string(ntohs(where.sin_port));
    thread_ = std::thread{[this] { serve(); }};
  }
  ~Parrot() {
    ::shutdown(fd_, SHUT_RDWR);
    thread_.join();
    ::close(fd_);
  }
  Parrot(const Parrot&) = delete;
  Parrot& operator=(const Parrot&) = delete;
  const std::string& address() const { return address_; }

 private:
  void serve() {
    for (;;) {
      const int peer = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
      if (peer < 0) {
        return;
      }
      const timeval limit{2, 0};
      ::setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      char chunk[65536];
      const auto upgrade = bytes_.find("\r\n\r\n") + 4;
      const bool asked = ::recv(peer, chunk, sizeof chunk, 0) > 0;
      if (asked && ::send(peer, bytes_.data(), upgrade, MSG_NOSIGNAL) > 0 &&
          ::recv(peer, chunk, sizeof chunk, 0) > 0) {
        ::send(peer, bytes_.data() + upgrade, bytes_.size() - upgrade, MSG_NOSIGNAL);
        while (::recv(peer, chunk, sizeof chunk, 0) > 0) {
        }
      }
      ::close(peer);
    }
  }

  std::string bytes_;
  int fd_ = -1;
  std::string address_;
  std::thread thread_;
};

/// A head with one worker, and what it held before the stranger came.
struct Cluster {
  Folder folder;
  std::vector<std::string> tls;
  std::unique_ptr<NodeProcess> head;
  std::unique_ptr<NodeProcess> worker;
  std::uint64_t epoch = 0;

  explicit Cluster(const std::string& certificates = "") {
    NodeSpec spec;
    spec.name = "head";
    spec.head = true;
    spec.data = folder / "data";
    if (!certificates.empty()) {
      make_ca(folder / certificates, spec.cluster);
      issue(folder / certificates, "head");
      issue(folder / certificates, "one");
      tls = {"--tls", folder / certificates};
      spec.more = tls;
    }
    head = std::make_unique<NodeProcess>(folder, spec);
    NodeSpec one;
    one.name = "one";
    one.join = head->address();
    one.more = tls;
    worker = std::make_unique<NodeProcess>(folder, one);
    REQUIRE(eventually([&] {
      const auto now = view();
      return now && now->count("up") == 2;
    }));
    epoch = view()->epoch;
    REQUIRE(complaints(head->err()).empty());
  }

  std::optional<ClusterInfo> view() {
    if (tls.empty()) {
      return head->view();
    }
    std::vector<std::string> words{TROUPE_PROGRAM, "status",         "--json",
                                   "--cluster",    head->address(),  "--name",
                                   "head",         "--cluster-name", head->spec().cluster};
    words.insert(words.end(), tls.begin(), tls.end());
    return parse_cluster(run_program(folder, words).out);
  }

  NodeSpec stranger() {
    NodeSpec spec;
    spec.name = "stranger";
    spec.join = head->address();
    spec.more = tls;
    return spec;
  }

  void check_unchanged() {
    const auto now = view();
    REQUIRE(now);
    CHECK(now->epoch == epoch);
    CHECK(now->count("up") == 2);
    CHECK(now->ended.empty());
  }

  /// One line on each side, exit code 1, and the view as it was.
  void check_refuses(const NodeSpec& spec, const std::string& told, const std::string& noted) {
    NodeProcess node{folder, spec};
    const auto code = node.wait(15s);
    INFO("node:\n" << node.err() << "head:\n" << head->err());
    CHECK(code == 1);
    const auto lines = complaints(node.err());
    CHECK(lines.size() == 1);
    CHECK((!lines.empty() && lines[0].find(told) != std::string::npos));
    CHECK((!lines.empty() && lines[0].rfind("troupe: ", 0) == 0));
    const auto logged = complaints(head->err());
    CHECK(logged.size() == 1);
    CHECK((!logged.empty() && logged[0].find(noted) != std::string::npos));
    check_unchanged();
  }
};

}  // namespace

TEST_CASE("a node of another cluster is refused", "[refusal]") {
  Cluster cluster;
  auto spec = cluster.stranger();
  spec.cluster = "elsewhere";
  cluster.check_refuses(spec, "elsewhere", "elsewhere");
}

TEST_CASE("a node whose clock is an hour off is refused", "[refusal]") {
  Cluster cluster;
  auto spec = cluster.stranger();
  spec.environment = {"TROUPE_FAULT_CLOCK_OFFSET_MS=3600000"};
  cluster.check_refuses(spec, "clock", "clock");
  const auto events = http_get(cluster.head->address(), "/api/v1/events").value_or("");
  CHECK(events.find("\"refused\"") != std::string::npos);
}

TEST_CASE("a member whose clock is a little off is welcome", "[refusal]") {
  Cluster cluster;
  auto spec = cluster.stranger();
  spec.environment = {"TROUPE_FAULT_CLOCK_OFFSET_MS=-5000"};
  NodeProcess node{cluster.folder, spec};
  CHECK(node.sees_up(3));
}

TEST_CASE("another protocol version is refused, and the one that has it is told", "[refusal]") {
  Cluster cluster;
  const auto answer = answer_to_version_77(cluster.head->address(), cluster.head->spec().cluster);
  CHECK(cluster.head->says("protocol version"));
  const auto logged = complaints(cluster.head->err());
  INFO(cluster.head->err());
  REQUIRE(logged.size() == 1);
  CHECK(logged[0].find("77 to 78") != std::string::npos);
  cluster.check_unchanged();

  // The other side: a node that is answered so ends with one line.
  REQUIRE(answer.find("\r\n\r\n") != std::string::npos);
  Parrot parrot{answer};
  auto spec = cluster.stranger();
  spec.join = parrot.address();
  NodeProcess node{cluster.folder, spec};
  const auto code = node.wait(15s);
  INFO(node.err());
  CHECK(code == 1);
  const auto told = complaints(node.err());
  CHECK(told.size() == 1);
  CHECK((!told.empty() && told[0].find("protocol version") != std::string::npos));
}

TEST_CASE("a certificate of another CA is refused", "[refusal][tls]") {
  Cluster cluster{"good"};
  make_ca(cluster.folder / "other", cluster.head->spec().cluster);
  issue(cluster.folder / "other", "stranger");
  auto spec = cluster.stranger();
  spec.more = {"--tls", cluster.folder / "other"};
  cluster.check_refuses(spec, "certificate", "certificate");
}

TEST_CASE("a node without a certificate is refused", "[refusal][tls]") {
  Cluster cluster{"good"};
  auto spec = cluster.stranger();
  spec.more.clear();
  cluster.check_refuses(spec, "TLS", "TLS");
}

TEST_CASE("a node with an expired certificate ends with one line", "[refusal][tls]") {
  Cluster cluster{"good"};
  const auto now = std::chrono::system_clock::now();
  issue(cluster.folder / "good", "stranger", {30, now - 48h, now - 24h});
  NodeProcess node{cluster.folder, cluster.stranger()};
  const auto code = node.wait(15s);
  INFO(node.err());
  CHECK(code == 1);
  const auto lines = complaints(node.err());
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("expired") != std::string::npos);
  CHECK(complaints(cluster.head->err()).size() <= 1);
  cluster.check_unchanged();
}

TEST_CASE(
    "a node of another cluster that is refused by one of two addresses goes on with the other",
    "[refusal]") {
  Cluster cluster;
  NodeSpec other_head;
  other_head.name = "other";
  other_head.head = true;
  other_head.cluster = "elsewhere";
  NodeProcess other{cluster.folder, other_head};
  auto spec = cluster.stranger();
  spec.join = other.address() + "," + cluster.head->address();
  NodeProcess node{cluster.folder, spec};
  CHECK(node.sees_up(3));
}
