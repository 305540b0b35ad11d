// The command line's HTTP client against our own endpoint and against servers that mean no good.
#include <catch2/catch.hpp>

#include "net/http_client.hpp"
#include "tests/unit/endpoint_support.hpp"
#include "tests/unit/tls_support.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace troupe::net::test;

namespace {

/// Accepts on loopback and gives each connection to `serve`, on a thread; at the end it closes all.
class HostileServer {
 public:
  explicit HostileServer(std::function<void(int)> serve) : serve_(std::move(serve)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof where;
    REQUIRE(::bind(listener_, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0);
    REQUIRE(::listen(listener_, 8) == 0);
    REQUIRE(::getsockname(listener_, reinterpret_cast<sockaddr*>(&where), &length) == 0);
    port_ = ntohs(where.sin_port);
    thread_ = std::thread([this] {
      for (int fd; (fd = ::accept(listener_, nullptr, nullptr)) >= 0;) {
        serve_(fd);
        ::close(fd);
      }
    });
  }
  ~HostileServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  std::function<void(int)> serve_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

bool send_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      return false;
    }
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

void read_request(int fd) {
  std::string seen;
  char chunk[4096];
  while (seen.find("\r\n\r\n") == std::string::npos) {
    const auto got = ::recv(fd, chunk, sizeof chunk, 0);
    if (got <= 0) {
      return;
    }
    seen.append(chunk, static_cast<std::size_t>(got));
  }
}

void wait_for_close(int fd) {
  char chunk[4096];
  while (::recv(fd, chunk, sizeof chunk, 0) > 0) {
  }
}

HttpCall call_to(const std::string& address, Duration timeout = 10s) {
  HttpCall call;
  call.address = address;
  call.timeout = timeout;
  return call;
}

error problem_of(const HttpCall& call) {
  const auto begin = std::chrono::steady_clock::now();
  const auto result = http_request(call);
  REQUIRE_FALSE(result);
  INFO(result.error().text());
  CHECK(std::chrono::steady_clock::now() - begin < call.timeout + 10s);
  CHECK(result.error().text().find(call.address) != std::string::npos);
  CHECK(result.error().text().find('\n') == std::string::npos);
  return result.error();
}

bool says(const error& reason, const std::string& text) {
  UNSCOPED_INFO(reason.text());
  return reason.text().find(text) != std::string::npos;
}

/// What a server answers to one request.
error answer_with(std::string answer, std::size_t limit = std::size_t{1} << 20U) {
  HostileServer server([&](int fd) {
    read_request(fd);
    send_all(fd, answer);
  });
  auto call = call_to(server.address());
  call.body_limit = limit;
  return problem_of(call);
}

void add_routes(Endpoint& endpoint) {
  endpoint.add_route("GET", "/hello", [](const HttpRequest& request) {
    HttpResponse response;
    response.body = "hello " + request.query_value("who").value_or("nobody");
    return response;
  });
  endpoint.add_route("POST", "/echo/*", [](const HttpRequest& request) {
    HttpResponse response;
    response.status = 201;
    response.content_type = "text/x";
    response.body = request.path + "|" + request.body;
    return response;
  });
  endpoint.add_route("GET", "/large", [](const HttpRequest&) {
    HttpResponse response;
    response.body = std::string(std::size_t{3} << 20U, 'x');
    return response;
  });
}

}  // namespace

TEST_CASE("requests to an endpoint", "[http_client]") {
  TestNode node;
  add_routes(node.transport.endpoint());
  auto call = call_to(node.address());
  call.target = "/hello?who=" + percent_encode("a b&c%\xC3\xA4");
  auto result = http_request(call);
  REQUIRE(result);
  CHECK(result->status == 200);
  CHECK(result->body == "hello a b&c%\xC3\xA4");

  call.method = "POST";
  call.target = "/echo/" + percent_encode("../x y");
  call.body = "text";
  result = http_request(call);
  REQUIRE(result);
  CHECK(result->status == 201);
  CHECK(result->content_type == "text/x");
  CHECK(result->body == "/echo/../x y|text");

  // Not a failure of the call.
  call = call_to(node.address());
  call.target = "/nothing";
  result = http_request(call);
  REQUIRE(result);
  CHECK(result->status == 404);

  call.target = "/large";
  result = http_request(call);
  REQUIRE(result);
  CHECK(result->body.size() == std::size_t{3} << 20U);
  call.body_limit = std::size_t{2} << 20U;
  CHECK(problem_of(call) == ec::limit_exceeded);
}

TEST_CASE("names are looked up", "[http_client]") {
  TestNode node;
  const auto port = std::to_string(node.transport.endpoint().port());
  auto call = call_to("localhost:" + port);
  call.target = "/livez";
  const auto result = http_request(call);
  REQUIRE(result);
  CHECK(result->body.find("ok") == 0);
  CHECK_FALSE(http_request(call_to("name.invalid:80", 20s)));
}

TEST_CASE("nothing listens", "[http_client]") {
  std::string address;
  {
    TestNode gone;
    address = gone.address();
  }
  const auto reason = problem_of(call_to(address));
  CHECK(reason == ec::refused);
  CHECK(says(reason, "nothing listens"));
}

TEST_CASE("calls that make no sense are refused before anything is sent", "[http_client]") {
  CHECK(http_request(call_to("nonsense")).error() == ec::invalid_argument);
  auto call = call_to("127.0.0.1:1");
  for (const char* target : {"", "x", "/a b", "/a\r\nX: y", "/\xC3\xA4"}) {
    call.target = target;
    CHECK(http_request(call).error() == ec::invalid_argument);
  }
  call.target = "/";
  call.method = "GE T";
  CHECK(http_request(call).error() == ec::invalid_argument);
}

TEST_CASE("a server that does not answer costs the timeout and no more", "[http_client]") {
  HostileServer silent(wait_for_close);
  auto reason = problem_of(call_to(silent.address(), 200ms));
  CHECK(reason == ec::timeout);
  CHECK(says(reason, "waiting for the answer"));

  HostileServer half([](int fd) {
    send_all(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
    wait_for_close(fd);
  });
  reason = problem_of(call_to(half.address(), 300ms));
  CHECK(reason == ec::timeout);
  CHECK(says(reason, "reading the answer"));

  // A byte now and then does not buy time.
  HostileServer drip([](int fd) {
    while (send_all(fd, "H")) {
      std::this_thread::sleep_for(20ms);
    }
  });
  CHECK_FALSE(http_request(call_to(drip.address(), 300ms)));

  // Its queue of connections takes ours without anybody behind it.
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof where;
  REQUIRE(::bind(listener, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0);
  REQUIRE(::listen(listener, 1) == 0);
  REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&where), &length) == 0);
  CHECK(problem_of(call_to("127.0.0.1:" + std::to_string(ntohs(where.sin_port)), 200ms)) ==
        ec::timeout);
  ::close(listener);
}

TEST_CASE("a server that speaks something else", "[http_client]") {
  CHECK(answer_with("SSH-2.0-OpenSSH_9.2\r\n\r\n") == ec::malformed);
  CHECK(answer_with(std::string(200, '\0') + "\r\n\r\n") == ec::malformed);
  CHECK(answer_with("HTTP/1.1 abc\r\n\r\n") == ec::malformed);
  CHECK(answer_with("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n") == ec::malformed);
  CHECK(answer_with("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n") ==
        ec::malformed);
  CHECK(answer_with("") == ec::node_unreachable);
  CHECK(answer_with("HTTP/1.1 200") == ec::node_unreachable);
  CHECK(answer_with("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf") == ec::node_unreachable);
}

TEST_CASE("answers without an end are cut at the limit", "[http_client]") {
  const auto endless = [](const std::string& head, const std::string& more) {
    return [=](int fd) {
      read_request(fd);
      send_all(fd, head);
      while (send_all(fd, more)) {
      }
    };
  };
  const std::string block(65536, 'x');
  HostileServer body(endless("HTTP/1.1 200 OK\r\n\r\n", block));
  auto call = call_to(body.address(), 60s);
  call.body_limit = std::size_t{1} << 20U;
  CHECK(problem_of(call) == ec::limit_exceeded);
  HostileServer chunks(endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                               "10000\r\n" + block + "\r\n"));
  call.address = chunks.address();
  CHECK(problem_of(call) == ec::limit_exceeded);
  HostileServer header(endless("HTTP/1.1 200 OK\r\n", "X: " + std::string(1000, 'x') + "\r\n"));
  call.address = header.address();
  CHECK(problem_of(call) == ec::limit_exceeded);
  CHECK(answer_with("HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n") ==
        ec::limit_exceeded);
}

TEST_CASE("TLS with certificates on both sides", "[http_client]") {
  TestCa ca("test");
  TestCa other("test");
  LogCapture quiet;
  NodeOptions options;
  options.tls = load_tls(ca.issue("server"));
  TestNode node(options);
  auto call = call_to(node.address());
  call.target = "/livez";

  call.tls = load_tls(ca.issue("client"));
  const auto result = http_request(call);
  REQUIRE(result);
  CHECK(result->status == 200);

  // The server trusts our CA and we do not trust its; then the other way round.
  call.tls = load_tls(other.issue("foreign"));
  auto reason = problem_of(call);
  CHECK(reason == ec::unauthorized);
  CHECK(says(reason, "we refused the peer's certificate"));
  auto stranger = other.issue("stranger");
  stranger.ca_file = other.trust_also(ca);
  call.tls = load_tls(stranger);
  reason = problem_of(call);
  CHECK(reason == ec::unauthorized);
  CHECK(says(reason, "refused our certificate"));
  // A plain request to a TLS port, and TLS to a plain port.
  call.tls = nullptr;
  const auto plain = http_request(call);
  CHECK((!plain || plain->status >= 400));
  TestNode open;
  call = call_to(open.address());
  call.tls = load_tls(ca.issue("another"));
  reason = problem_of(call);
  CHECK(reason == ec::unauthorized);
  CHECK(says(reason, "TLS"));
  HostileServer silent(wait_for_close);
  call.address = silent.address();
  call.timeout = 200ms;
  reason = problem_of(call);
  CHECK(reason == ec::timeout);
  CHECK(says(reason, "TLS"));
}
