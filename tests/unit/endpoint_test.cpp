// HTTP, WebSocket and the listen policy over real sockets.
#include <catch2/catch.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket/stream.hpp>

#include "endpoint_support.hpp"
#include "tls_support.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace troupe::net::test;
namespace websocket = boost::beast::websocket;
using boost::system::error_code;

namespace {

HttpResponse text(std::string body) {
  HttpResponse out;
  out.body = std::move(body);
  return out;
}

std::string talk(std::uint16_t port, const std::string& request) {
  RawClient client(port);
  client.send(request);
  return client.read_all();
}

/// The answer to a request that asks for the connection to end.
std::string ask(std::uint16_t port, const std::string& method, const std::string& target,
                const std::string& body = {}, const std::string& headers = {}) {
  return talk(port, method + " " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" +
                        headers + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                        body);
}

bool has(const std::string& whole, const std::string& part) {
  return whole.find(part) != std::string::npos;
}

/// A blocking WebSocket client with a bound on every receive.
class WsClient {
 public:
  explicit WsClient(std::uint16_t port) : stream_(context_) {
    error_code failure;
    stream_.next_layer().connect({boost::asio::ip::address_v4::loopback(), port}, failure);
    const timeval limit{10, 0};
    ::setsockopt(stream_.next_layer().native_handle(), SOL_SOCKET, SO_RCVTIMEO, &limit,
                 sizeof limit);
  }
  error_code open(const std::string& path = "/ws") {
    error_code failure;
    stream_.handshake("127.0.0.1", path, failure);
    return failure;
  }
  error_code send(const std::string& content, bool is_text = true) {
    error_code failure;
    stream_.text(is_text);
    stream_.write(boost::asio::buffer(content), failure);
    return failure;
  }
  /// The next message, or the error's text.
  std::string receive() {
    boost::beast::flat_buffer buffer;
    error_code failure;
    stream_.read(buffer, failure);
    if (failure) {
      return "error: " + failure.message();
    }
    return {static_cast<const char*>(buffer.data().data()), buffer.size()};
  }
  websocket::stream<boost::asio::ip::tcp::socket>& stream() { return stream_; }

 private:
  boost::asio::io_context context_;
  websocket::stream<boost::asio::ip::tcp::socket> stream_;
};

}  // namespace

TEST_CASE("plain requests: livez, unknown paths, methods, HEAD, bodies, queries") {
  TestNode node;
  auto& endpoint = node.transport.endpoint();
  const auto port = endpoint.port();
  endpoint.add_route("POST", "/echo", [](const HttpRequest& request) {
    return text(request.method + " " + request.path + " " + request.body);
  });
  endpoint.add_route("GET", "/api/*", [](const HttpRequest& request) {
    return text("api " + request.path + " q=" + request.query_value("q").value_or("none") +
                " h=" + request.header("x-tag").value_or("none"));
  });
  endpoint.add_route("GET", "/api/deep/*", [](const HttpRequest&) { return text("deep"); });
  endpoint.add_route("GET", "/throws", [](const HttpRequest&) -> HttpResponse {
    throw std::runtime_error("on purpose");
  });
  endpoint.add_route("GET", "/headers", [](const HttpRequest&) {
    HttpResponse out{201, "application/json", "{}", {{"X-Good", "1"}, {"X-Bad", "a\r\nEvil: 1"}}};
    return out;
  });

  const auto alive = ask(port, "GET", "/livez");
  CHECK(has(alive, "HTTP/1.1 200 OK"));
  CHECK(alive.ends_with("\r\n\r\nok"));
  CHECK(has(ask(port, "GET", "/nothing"), "404 Not Found"));
  const auto wrong = ask(port, "DELETE", "/livez");
  CHECK(has(wrong, "405 Method Not Allowed"));
  CHECK(has(wrong, "Allow: GET, HEAD"));
  const auto head = ask(port, "HEAD", "/livez");
  CHECK(has(head, "200 OK"));
  CHECK(has(head, "Content-Length: 2"));
  CHECK(head.ends_with("\r\n\r\n"));
  CHECK(ask(port, "POST", "/echo", "body").ends_with("POST /echo body"));
  CHECK(ask(port, "GET", "/api/a%20b?p=1&q=x%26y+z", "", "X-Tag: t\r\n")
            .ends_with("api /api/a b q=x&y z h=t"));
  CHECK(ask(port, "GET", "/api/deep/er").ends_with("deep"));
  CHECK(has(ask(port, "GET", "/api/%zz"), "400 Bad Request"));
  CHECK(has(ask(port, "GET", "http://elsewhere/"), "400 Bad Request"));
  {
    LogCapture log;
    const auto failed = ask(port, "GET", "/throws");
    CHECK(has(failed, "500 Internal Server Error"));
    CHECK_FALSE(has(failed, "on purpose"));
    CHECK(log.count("on purpose") == 1);
  }
  const auto headers = ask(port, "GET", "/headers");
  CHECK(has(headers, "201 Created"));
  CHECK(has(headers, "application/json"));
  CHECK(has(headers, "X-Good: 1"));
  CHECK_FALSE(has(headers, "Evil"));
}

TEST_CASE("a connection serves many requests, pipelined or not") {
  TestNode node;
  RawClient client(node.transport.endpoint().port());
  for (int i = 0; i < 3; ++i) {
    client.send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(has(client.read_until("\r\n\r\nok"), "200 OK"));
  }
  client.send(
      "GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
      "GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const auto answers = client.read_all();
  CHECK(client.ended);
  const auto first = answers.find("200 OK");
  REQUIRE(first != std::string::npos);
  CHECK(answers.find("200 OK", first + 1) != std::string::npos);
  CHECK(has(answers, "404 Not Found"));
  const auto old = talk(node.transport.endpoint().port(), "GET /livez HTTP/1.0\r\n\r\n");
  CHECK(old.ends_with("ok"));
}

TEST_CASE("limits of size are answered with 413 and 431, and Expect is honoured") {
  LogCapture quiet;
  HttpLimits limits;
  limits.header_bytes = 2000;
  limits.body_bytes = 10'000;
  TestNode node({.limits = limits});
  const auto port = node.transport.endpoint().port();
  node.transport.endpoint().add_route("POST", "/size", [](const HttpRequest& request) {
    return text(std::to_string(request.body.size()));
  });
  CHECK(ask(port, "POST", "/size", std::string(10'000, 'x')).ends_with("10000"));
  CHECK(has(ask(port, "POST", "/size", std::string(10'001, 'x')), "413 Payload Too Large"));
  CHECK(has(talk(port, "POST /size HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2711\r\n" +
                           std::string(10'001, 'x') + "\r\n0\r\n\r\n"),
            "413 Payload Too Large"));
  CHECK(has(ask(port, "GET", "/livez", "", "X-Long: " + std::string(3000, 'x') + "\r\n"),
            "431 Request Header Fields Too Large"));
  CHECK(has(ask(port, "GET", "/" + std::string(3000, 'x')), "431 "));
  CHECK(has(talk(port, "NONSENSE\r\n\r\n"), "400 Bad Request"));
  RawClient careful(port);
  careful.send(
      "POST /size HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n"
      "Connection: close\r\n\r\n");
  CHECK(has(careful.read_until("\r\n\r\n"), "100 Continue"));
  careful.send("four");
  CHECK(careful.read_all().ends_with("\r\n\r\n4"));
}

TEST_CASE("asynchronous handlers answer from any thread, once, or time out with 504") {
  HttpLimits limits;
  limits.async_timeout = 200ms;
  TestNode node({.limits = limits});
  const auto port = node.transport.endpoint().port();
  std::vector<std::thread> threads;
  std::mutex mutex;
  HttpResponder kept;
  node.transport.endpoint().add_async_route(
      "GET", "/later", [&](HttpRequest request, HttpResponder respond) {
        const std::lock_guard lock(mutex);
        threads.emplace_back([request = std::move(request), respond = std::move(respond)] {
          respond(text("later " + request.path));
          respond(text("twice"));
        });
      });
  node.transport.endpoint().add_async_route("GET", "/never",
                                            [&](HttpRequest, HttpResponder respond) {
                                              const std::lock_guard lock(mutex);
                                              kept = std::move(respond);
                                            });
  CHECK(ask(port, "GET", "/later").ends_with("later /later"));
  RawClient client(port);
  client.send("GET /never HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(has(client.read_until("time\n"), "504 Gateway Timeout"));
  client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  {
    const std::lock_guard lock(mutex);
    kept(text("too late"));
  }
  const auto answer = client.read_until("later /later");
  CHECK(has(answer, "later /later"));
  CHECK_FALSE(has(answer, "too late"));
  client.close();
  node.transport.shutdown();
  kept(text("after the end"));
  for (auto& thread : threads) {
    thread.join();
  }
}

TEST_CASE("upgrades that are not a peer's are refused with a reason") {
  LogCapture log;
  TestNode node({.id = 7, .cluster = "ours"});
  const auto port = node.transport.endpoint().port();
  const auto peer = [&](const std::string& id, const std::string& cluster,
                        const std::string& purpose) {
    return talk(port,
                "GET /peer HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\n"
                "Upgrade: troupe/1\r\nTroupe-Node: " +
                    id + "\r\nTroupe-Cluster: " + cluster + "\r\nTroupe-Purpose: " + purpose +
                    "\r\n\r\n");
  };
  const std::string id(32, '1');
  CHECK(has(peer(id, "theirs", "link"), "409 Conflict"));
  CHECK(log.count("'ours'") == 1);
  CHECK(has(peer("short", "ours", "link"), "400 Bad Request"));
  CHECK(has(peer(std::string(32, '0'), "ours", "link"), "400 Bad Request"));
  CHECK(has(peer(id, "ours", "party"), "400 Bad Request"));
  CHECK(has(ask(port, "GET", "/peer"), "426 Upgrade Required"));
  CHECK(node.arrivals->size() == 0);
  CHECK(node.transport.endpoint().counters().peers_refused == 5);
  RawClient good(port);
  good.send(
      "GET /peer HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: troupe/1\r\n"
      "Troupe-Node: " +
      id + "\r\nTroupe-Cluster: ours\r\nTroupe-Purpose: link\r\n\r\nearly");
  CHECK(has(good.read_until("\r\n\r\n"), "101 Switching Protocols"));
  auto accepted = node.arrivals->take();
  REQUIRE(accepted.stream);
  auto sink = std::make_shared<RecordingSink>();
  accepted.stream->start(sink);
  good.send(" and late");
  CHECK(eventually([&] { return sink->received() == "early and late"; }));
}

TEST_CASE("WebSockets carry text and binary messages both ways") {
  TestNode node;
  auto& endpoint = node.transport.endpoint();
  std::atomic<int> closed{0};
  std::promise<std::shared_ptr<WebSocketSession>> opened;
  endpoint.on_websocket("/ws", [&](const std::shared_ptr<WebSocketSession>& session) {
    session->on_text([session](std::string message) { session->send_text("text " + message); });
    session->on_binary(
        [session](std::string message) { session->send_binary("binary " + message); });
    session->on_close([&closed] { ++closed; });
    opened.set_value(session);
  });
  std::weak_ptr<WebSocketSession> watch;
  {
    WsClient client(endpoint.port());
    REQUIRE_FALSE(client.open());
    auto future = opened.get_future();
    REQUIRE(future.wait_for(10s) == std::future_status::ready);
    auto session = future.get();
    watch = session;
    CHECK(session->request().path == "/ws");
    CHECK_FALSE(client.send("hello"));
    CHECK(client.receive() == "text hello");
    CHECK_FALSE(client.send(std::string(100'000, 'b'), false));
    CHECK(client.receive() == "binary " + std::string(100'000, 'b'));
    CHECK(endpoint.counters().open_websockets == 1);
    std::thread other([&] {
      for (int i = 0; i < 100; ++i) {
        session->send_text(std::to_string(i));
      }
      session->close(1000, "enough");
    });
    for (int i = 0; i < 100; ++i) {
      CHECK(client.receive() == std::to_string(i));
    }
    CHECK(client.receive().starts_with("error"));
    CHECK(client.stream().reason().reason == "enough");
    other.join();
    CHECK(eventually([&] { return closed == 1; }));
    CHECK_FALSE(session->send_text("late"));
  }
  CHECK(eventually([&] { return watch.expired(); }));
  CHECK(eventually([&] { return endpoint.counters().open_websockets == 0; }));
}

TEST_CASE("WebSocket limits: message size, silent readers, count, origin, path") {
  LogCapture log;
  HttpLimits limits;
  limits.websockets = 2;
  limits.websocket_message_bytes = 1000;
  limits.websocket_queue_bytes = 1 << 20;
  TestNode node({.limits = limits});
  auto& endpoint = node.transport.endpoint();
  std::mutex mutex;
  std::shared_ptr<WebSocketSession> latest;
  endpoint.on_websocket("/ws", [&](const std::shared_ptr<WebSocketSession>& session) {
    session->on_text([session](std::string message) { session->send_text(std::move(message)); });
    const std::lock_guard lock(mutex);
    latest = session;
  });
  const auto none_open = [&] {
    latest.reset();
    return eventually([&] { return endpoint.counters().open_websockets == 0; });
  };
  SECTION("a message beyond the limit ends the connection") {
    WsClient client(endpoint.port());
    REQUIRE_FALSE(client.open());
    CHECK_FALSE(client.send(std::string(1000, 'x')));
    CHECK(client.receive().size() == 1000);
    client.send(std::string(1001, 'x'));
    CHECK(client.receive().starts_with("error"));
  }
  SECTION("a client that does not read is dropped when its queue is full") {
    WsClient client(endpoint.port());
    REQUIRE_FALSE(client.open());
    bool refused = false;
    for (int i = 0; i < 100'000 && !refused; ++i) {
      const std::lock_guard lock(mutex);
      refused = latest && !latest->send_binary(std::string(10'000, 'q'));
    }
    CHECK(refused);
    CHECK(eventually([&] { return log.count("queue is full") == 1; }));
    CHECK(none_open());
  }
  SECTION("too many, wrong origin, wrong path") {
    WsClient one(endpoint.port());
    WsClient two(endpoint.port());
    WsClient three(endpoint.port());
    CHECK_FALSE(one.open());
    CHECK_FALSE(two.open());
    CHECK(three.open() == websocket::error::upgrade_declined);
    const std::string head =
        "GET /ws HTTP/1.1\r\nHost: node:1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";
    one.stream().next_layer().close();
    two.stream().next_layer().close();
    CHECK(none_open());
    CHECK(has(talk(endpoint.port(), head + "Origin: http://evil\r\n\r\n"), "403 Forbidden"));
    RawClient same(endpoint.port());
    same.send(head + "Origin: http://node:1\r\n\r\n");
    CHECK(has(same.read_until("\r\n\r\n"), "101 Switching Protocols"));
    WsClient lost(endpoint.port());
    CHECK(lost.open("/elsewhere") == websocket::error::upgrade_declined);
  }
  latest.reset();
}

TEST_CASE("a WebSocket client that answers no ping is dropped") {
  HttpLimits limits;
  limits.websocket_idle_timeout = 300ms;
  TestNode node({.limits = limits});
  auto& endpoint = node.transport.endpoint();
  endpoint.on_websocket("/ws", [](const std::shared_ptr<WebSocketSession>&) {});
  WsClient client(endpoint.port());
  REQUIRE_FALSE(client.open());
  CHECK(eventually([&] { return endpoint.counters().open_websockets == 1; }));
  CHECK(eventually([&] { return endpoint.counters().open_websockets == 0; }));
}

TEST_CASE("the listen policy keeps a node without TLS on loopback") {
  for (const char* local : {"127.0.0.1:0", "127.8.9.1:4000", "[::1]:0", "localhost:80"}) {
    CHECK(check_listen_policy(local, false, false));
  }
  for (const char* open : {"0.0.0.0:0", "[::]:0", "10.1.2.3:4000", "[::ffff:10.0.0.1]:1"}) {
    const auto refused = check_listen_policy(open, false, false);
    REQUIRE_FALSE(refused);
    CHECK(refused.error() == ec::invalid_argument);
    CHECK(has(refused.error().text(), "--insecure"));
    CHECK(check_listen_policy(open, true, false));
    CHECK(check_listen_policy(open, false, true));
  }
  CHECK_FALSE(check_listen_policy("no-such-host.invalid:1", true, false));
  TestNode node;
  CHECK_FALSE(node.transport.listen("127.0.0.1:0"));  // once only
  CHECK_THROWS_WITH(TestNode({.listen = "0.0.0.0:0"}), Catch::Contains("without TLS"));
  CHECK_THROWS_WITH(TestNode({.listen = node.address()}), Catch::Contains("cannot listen"));
}
