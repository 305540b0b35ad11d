// Mutual TLS between nodes: who gets in, who does not and what both sides say; bulk transfers.
#include <catch2/catch.hpp>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "endpoint_support.hpp"
#include "net/philox.hpp"
#include "tls_support.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace troupe::net::test;

namespace {

constexpr std::size_t pattern_size = 1048583;  // prime: records never line up with it

const std::string& pattern() {
  static const std::string bytes = [] {
    std::string out(pattern_size, '\0');
    PhiloxStream random(42);
    for (auto& c : out) {
      c = static_cast<char>(random());
    }
    return out;
  }();
  return bytes;
}

/// Sends `total` bytes of the pattern and checks that it receives the same.
class BulkSink : public StreamSink {
 public:
  BulkSink(std::shared_ptr<Stream> stream, std::size_t total, std::size_t window)
      : stream_(std::move(stream)), total_(total), window_(window) {}

  void pump() {
    while (stream_ && sent < total_) {
      const std::size_t at = sent % pattern_size;
      const std::size_t size = std::min({pattern_size - at, total_ - sent, std::size_t{300'000}});
      const ConstBuffer whole = std::as_bytes(std::span{pattern().data() + at, size});
      // A small header-like piece in front of the bulk, as the link writes.
      const std::size_t head = std::min<std::size_t>(size, 37);
      const ConstBuffer parts[] = {whole.first(head), whole.subspan(head)};
      const std::size_t taken = stream_->write(parts);
      sent += taken;
      if (taken < size) {
        return;
      }
    }
  }

  MutableBuffer read_window() override { return {window_.data(), window_.size()}; }
  void on_bytes(std::size_t count) override {
    std::size_t done = 0;
    while (done < count) {
      const std::size_t at = (received + done) % pattern_size;
      const std::size_t size = std::min(pattern_size - at, count - done);
      if (std::memcmp(window_.data() + done, pattern().data() + at, size) != 0) {
        wrong = true;
      }
      done += size;
    }
    received += count;
  }
  void on_writable() override { pump(); }
  void on_closed(const error&) override {
    closed = true;
    stream_.reset();
  }

  std::atomic<std::size_t> sent{0};
  std::atomic<std::size_t> received{0};
  std::atomic<bool> wrong{false};
  std::atomic<bool> closed{false};

 private:
  std::shared_ptr<Stream> stream_;
  std::size_t total_;
  std::vector<std::byte> window_;
};

void bulk_both_ways(const std::shared_ptr<const TlsContext>& tls, std::size_t window) {
  constexpr std::size_t total = std::size_t{128} << 20U;
  TestNode a({.id = 1, .tls = tls});
  TestNode b({.id = 2, .tls = tls});
  auto dialled = a.dial(b.address());
  REQUIRE(dialled);
  auto accepted = b.arrivals->take();
  REQUIRE(accepted.stream);
  CHECK(dialled->stream->encrypted() == (tls != nullptr));
  auto here = std::make_shared<BulkSink>(dialled->stream, total, window);
  auto there = std::make_shared<BulkSink>(accepted.stream, total, window);
  dialled->stream->start(here);
  accepted.stream->start(there);
  a.transport.executor(StreamPurpose::link).post([here] { here->pump(); });
  b.transport.executor(StreamPurpose::link).post([there] { there->pump(); });
  CHECK(eventually([&] { return here->received == total && there->received == total; }, 120s));
  CHECK_FALSE(here->wrong);
  CHECK_FALSE(there->wrong);
  dialled->stream->close({ec::closed, "done"});
  CHECK(eventually([&] { return here->closed && there->closed; }));
}

/// A TLS client that is not a Troupe node. Returns the reason of the failure, or what it read.
std::string foreign_client(std::uint16_t port, int version, const TlsConfig* certificate) {
  RawClient raw(port);
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_max_proto_version(context, version);
  if (certificate != nullptr) {
    SSL_CTX_use_certificate_chain_file(context, certificate->cert_file.c_str());
    SSL_CTX_use_PrivateKey_file(context, certificate->key_file.c_str(), SSL_FILETYPE_PEM);
  }
  SSL* ssl = SSL_new(context);
  SSL_set_fd(ssl, raw.fd());
  timeval limit{10, 0};
  ::setsockopt(raw.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ERR_clear_error();
  std::string result;
  char chunk[1024];
  if (SSL_connect(ssl) == 1) {
    const std::string request = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";
    SSL_write(ssl, request.data(), static_cast<int>(request.size()));
    const int got = SSL_read(ssl, chunk, sizeof chunk);
    if (got > 0) {
      result.assign(chunk, static_cast<std::size_t>(got));
    }
  }
  if (result.empty()) {
    result = describe_tls_error(ERR_peek_error());
  }
  SSL_free(ssl);
  SSL_CTX_free(context);
  ERR_clear_error();
  return result;
}

}  // namespace

TEST_CASE("128 MB in both directions at once arrive bit for bit over plaintext") {
  bulk_both_ways(nullptr, 256 * 1024);
}

TEST_CASE("128 MB in both directions at once arrive bit for bit over TLS") {
  TestCa ca("test");
  const auto tls = load_tls(ca.issue("node"));
  bulk_both_ways(tls, 256 * 1024);
  bulk_both_ways(tls, 1000);  // windows smaller than a record
}

TEST_CASE("TLS streams: either side may speak first, short writes, last words") {
  TestCa ca("test");
  TestNode a({.id = 1, .tls = load_tls(ca.issue("a"))});
  TestNode b({.id = 2, .tls = load_tls(ca.issue("b"))});
  for (int round = 0; round < 20; ++round) {
    const auto purpose = round % 2 == 0 ? StreamPurpose::link : StreamPurpose::heartbeat;
    auto dialled = a.dial(b.address(), purpose);
    REQUIRE(dialled);
    auto accepted = b.arrivals->take();
    REQUIRE(accepted.stream);
    auto client = std::make_shared<RecordingSink>();
    auto server = std::make_shared<RecordingSink>();
    write_text(*accepted.stream, "welcome");
    write_text(*dialled->stream, "hello");
    accepted.stream->start(server);
    dialled->stream->start(client);
    CHECK(eventually([&] { return client->received() == "welcome"; }));
    CHECK(eventually([&] { return server->received() == "hello"; }));
    write_text(*accepted.stream, ", goodbye");
    accepted.stream->close({ec::conflict, "refused"});
    CHECK(eventually([&] { return client->closed == 1 && server->closed == 1; }));
    CHECK(client->received() == "welcome, goodbye");
    CHECK(client->reason() == ec::closed);
  }
  auto dialled = a.dial(b.address());
  REQUIRE(dialled);
  auto accepted = b.arrivals->take();
  auto client = std::make_shared<RecordingSink>();
  auto server = std::make_shared<RecordingSink>();
  dialled->stream->start(client);
  const std::string chunk(1 << 20, 'b');
  std::size_t sent = 0;
  for (int i = 0; i < 256; ++i) {
    const std::size_t taken = write_text(*dialled->stream, chunk);
    sent += taken;
    if (taken < chunk.size()) {
      break;
    }
  }
  REQUIRE(sent % chunk.size() != 0);
  CHECK(client->writable == 0);
  accepted.stream->start(server);
  CHECK(eventually([&] { return client->writable >= 1 && server->size() == sent; }));
}

TEST_CASE("a server that speaks at once after the upgrade loses nothing") {
  TestCa ca("test");
  const auto tls = load_tls(ca.issue("node"));
  const std::string welcome(50'000, 'w');
  for (const auto& context : {std::shared_ptr<const TlsContext>{}, tls}) {
    TestNode a({.id = 1, .tls = context});
    TestNode b({.id = 2, .tls = context});
    b.transport.on_accept([&](OpenStream stream) {
      write_text(*stream.stream, welcome);
      b.arrivals->add(std::move(stream));
    });
    for (int round = 0; round < 50; ++round) {
      auto dialled = a.dial(b.address());
      REQUIRE(dialled);
      auto client = std::make_shared<RecordingSink>();
      dialled->stream->start(client);
      CHECK(eventually([&] { return client->size() == welcome.size(); }));
      CHECK(client->received() == welcome);
    }
  }
}

TEST_CASE("a certificate of another CA is refused, and both sides say why") {
  TestCa ours("test");
  TestCa theirs("test");
  LogCapture log;
  TestNode server({.id = 1, .tls = load_tls(ours.issue("server"))});
  SECTION("the server refuses the client") {
    TlsConfig config = theirs.issue("client");
    config.ca_file = theirs.trust_also(ours);
    TestNode client({.id = 2, .tls = load_tls(config)});
    const auto dialled = client.dial(server.address());
    REQUIRE_FALSE(dialled);
    INFO(dialled.error().text());
    CHECK(dialled.error() == ec::unauthorized);
    CHECK(dialled.error().text().find("the peer refused our certificate") != std::string::npos);
    CHECK(eventually([&] { return log.count("we refused the peer's certificate") == 1; }));
    // Who dialled has it in the error, and says it where people look.
    CHECK(log.count("the peer refused our certificate") == 0);
  }
  SECTION("the client refuses the server") {
    TestNode client({.id = 2, .tls = load_tls(theirs.issue("client"))});
    const auto dialled = client.dial(server.address());
    REQUIRE_FALSE(dialled);
    INFO(dialled.error().text());
    CHECK(dialled.error() == ec::unauthorized);
    CHECK(dialled.error().text().find("we refused the peer's certificate") != std::string::npos);
    CHECK(eventually([&] { return log.count("the peer refused our certificate") == 1; }));
    CHECK(log.count("we refused the peer's certificate") == 0);
  }
  INFO(log.all());
  CHECK(server.arrivals->size() == 0);
}

TEST_CASE("a certificate of another cluster is refused, and both sides say why") {
  TestCa ours("test");
  TestCa theirs("other");
  LogCapture log;
  TlsConfig server_config = ours.issue("server");
  server_config.ca_file = ours.trust_also(theirs);
  TlsConfig client_config = theirs.issue("client");
  client_config.ca_file = theirs.trust_also(ours);
  client_config.cluster = "test";
  TestNode server({.id = 1, .tls = load_tls(server_config)});
  TestNode client({.id = 2, .tls = load_tls(client_config)});
  const auto dialled = client.dial(server.address());
  REQUIRE_FALSE(dialled);
  INFO(dialled.error().text());
  CHECK(dialled.error() == ec::unauthorized);
  CHECK(dialled.error().text().find("the peer refused our certificate") != std::string::npos);
  CHECK(eventually([&] { return log.count("troupe://cluster/other") == 1; }));
}

TEST_CASE("an expired certificate is refused") {
  TestCa ca("test");
  LogCapture log;
  Validity brief{1};
  brief.valid_until = std::chrono::system_clock::now() + 2s;
  const TlsConfig config = ca.issue("brief", brief);
  const auto tls = load_tls(config);
  TestNode server({.id = 1, .tls = load_tls(ca.issue("server"))});
  TestNode client({.id = 2, .tls = tls});
  CHECK(eventually([&] { return std::chrono::system_clock::now() > *brief.valid_until + 1s; }));
  const auto dialled = client.dial(server.address());
  REQUIRE_FALSE(dialled);
  INFO(dialled.error().text());
  CHECK(dialled.error() == ec::unauthorized);
  CHECK(dialled.error().text().find("expired") != std::string::npos);
  CHECK(eventually([&] { return log.count("certificate has expired") == 1; }));
  // A node says so at its start.
  const auto again = TlsContext::load(config);
  REQUIRE_FALSE(again);
  CHECK(again.error().text().find("expired") != std::string::npos);
}

TEST_CASE("foreign clients: no certificate, an old TLS version, no TLS at all") {
  TestCa ca("test");
  LogCapture log;
  const TlsConfig good = ca.issue("server");
  TestNode server({.id = 1, .tls = load_tls(good)});
  const auto port = server.transport.endpoint().port();
  CHECK(foreign_client(port, TLS1_3_VERSION, nullptr).find("refused our certificate") !=
        std::string::npos);
  CHECK(eventually([&] { return log.count("the peer sent no certificate") == 1; }));
  CHECK(foreign_client(port, TLS1_2_VERSION, &good).find("TLS version") != std::string::npos);
  CHECK(eventually([&] { return log.count("does not offer TLS 1.3") == 1; }));
  CHECK(foreign_client(port, TLS1_3_VERSION, &good).find("200 OK") != std::string::npos);

  RawClient plain(port);
  plain.send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(plain.read_all().find("400 Bad Request") != std::string::npos);
  CHECK(eventually([&] { return log.count("does not speak TLS") == 1; }));
  TestNode without({.id = 2});
  const auto dialled = without.dial(server.address());
  REQUIRE_FALSE(dialled);
  CHECK(dialled.error() == ec::handshake_refused);
  CHECK(dialled.error().text().find("requires TLS") != std::string::npos);
}

TEST_CASE("a TLS node that dials a plaintext port is told so") {
  TestCa ca("test");
  LogCapture log;
  TestNode client({.id = 1, .tls = load_tls(ca.issue("client"))});
  TestNode server({.id = 2});
  const auto dialled = client.dial(server.address());
  REQUIRE_FALSE(dialled);
  INFO(dialled.error().text());
  CHECK(dialled.error().text().find("does not speak TLS") != std::string::npos);
  CHECK(log.count("listens in plaintext") == 1);
}

TEST_CASE("unusable TLS files are refused with the file's name") {
  TestCa ca("test");
  TestCa other("test");
  const TlsConfig good = ca.issue("node");
  TlsConfig bad = good;
  bad.key_file = "/nonexistent/key";
  REQUIRE_FALSE(TlsContext::load(bad));
  CHECK(TlsContext::load(bad).error() == ec::not_found);
  bad = good;
  bad.key_file = other.issue("node").key_file;
  REQUIRE_FALSE(TlsContext::load(bad));
  CHECK(TlsContext::load(bad).error() == ec::invalid_argument);
  bad = good;
  bad.ca_file = other.ca_file();
  REQUIRE_FALSE(TlsContext::load(bad));
  CHECK(TlsContext::load(bad).error().text().find("does not hold") != std::string::npos);
}
