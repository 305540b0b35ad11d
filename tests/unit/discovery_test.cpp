#include <catch2/catch.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>

#include "net/discovery.hpp"
#include "net/discovery_lan.hpp"
#include "net/discovery_parse.hpp"
#include "net/philox.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace std::chrono_literals;

namespace {

using Strings = std::vector<std::string>;

AddressList find_wait(Discovery& discovery) {
  auto promise = std::make_shared<std::promise<AddressList>>();
  auto future = promise->get_future();
  discovery.find([promise](Strings addresses, Strings problems) {
    promise->set_value({std::move(addresses), std::move(problems)});
  });
  REQUIRE(future.wait_for(30s) == std::future_status::ready);
  return future.get();
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

/// A DNS answer, put together by hand.
struct Dns {
  explicit Dns(unsigned answers, unsigned code = 0) {
    raw(std::string{"\x12\x34\x81", 3} + static_cast<char>(0x80 + code));
    big16(1);
    big16(answers);
    raw(std::string(4, '\0'));
    name("_troupe._tcp.example.org");
    big16(33);
    big16(1);
  }
  void raw(const std::string& text) { message += text; }
  void big16(unsigned value) {
    message += static_cast<char>(value >> 8U);
    message += static_cast<char>(value & 0xFFU);
  }
  void name(const std::string& dotted) {
    for (std::size_t at = 0; at < dotted.size();) {
      const auto end = std::min(dotted.find('.', at), dotted.size());
      message += static_cast<char>(end - at) + dotted.substr(at, end - at);
      at = end + 1;
    }
    message += '\0';
  }
  /// With the question's name as owner.
  void srv(unsigned priority, unsigned weight, unsigned port, const std::string& target) {
    raw("\xC0\x0C");
    big16(33);
    big16(1);
    raw(std::string(4, '\0'));
    const std::string before = std::exchange(message, {});
    name(target);
    const std::string encoded = std::exchange(message, before);
    big16(static_cast<unsigned>(6 + encoded.size()));
    big16(priority);
    big16(weight);
    big16(port);
    raw(encoded);
  }
  std::vector<std::byte> bytes() const { return bytes_of(message); }
  std::string message;
};

struct TempFile {
  explicit TempFile(const std::string& text)
      : path(std::filesystem::temp_directory_path() /
             ("troupe-discovery-" + std::to_string(::getpid()))) {
    write(text);
  }
  ~TempFile() { std::filesystem::remove(path); }
  void write(const std::string& text) const { std::ofstream(path) << text; }
  std::filesystem::path path;
};

/// Noise, packets with a wrong size, and answers that nobody asked for.
void send_garbage(const LanGroup& group) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  REQUIRE(fd >= 0);
  in_addr loopback{};
  loopback.s_addr = htonl(INADDR_LOOPBACK);
  ::setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &loopback, sizeof loopback);
  sockaddr_in target{};
  target.sin_family = AF_INET;
  target.sin_port = htons(group.port);
  ::inet_pton(AF_INET, group.ip.c_str(), &target.sin_addr);
  const auto send = [&](const std::vector<std::byte>& bytes) {
    ::sendto(fd, bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&target),
             sizeof target);
  };
  PhiloxStream random(1);
  for (int i = 0; i < 200; ++i) {
    std::vector<std::byte> junk(random.below(2000));
    for (std::byte& b : junk) {
      b = static_cast<std::byte>(random() & 0xFFU);
    }
    send(junk);
  }
  send(encode_lan({LanKind::answer, 1, "demo", "10.6.6.6:1"}));
  auto query = encode_lan({LanKind::query, 1, "demo", ""});
  query.push_back(std::byte{0});
  send(query);
  ::close(fd);
}

/// A group of its own for each run of this program, so that runs do not hear each other.
std::string lan_of_this_test() {
  return "lan:239.255.84." + std::to_string(1 + ::getpid() % 250) + ":" +
         std::to_string(20'000 + ::getpid() % 10'000);
}

}  // namespace

TEST_CASE("discovery: sources") {
  CHECK(parse_source(" 10.0.0.1:4700 ")->where.host == "10.0.0.1");
  CHECK(parse_source("[::1]:1")->where.host == "::1");
  CHECK(parse_source("head.example:4700")->where.port == 4700);
  CHECK(parse_source("lan:4700")->kind == SourceKind::host);
  CHECK(parse_source("lan")->group.port == 47474);
  CHECK(parse_source("lan:239.1.2.3:99")->group.ip == "239.1.2.3");
  CHECK(parse_source("srv:_troupe._tcp.example.org")->name == "_troupe._tcp.example.org");
  CHECK(parse_source("file:/etc/troupe/heads")->name == "/etc/troupe/heads");
  for (const char* bad :
       {"", "host", "host:", "host:0", "host:99999", "lan:10.0.0.1:5", "lan:239.1.2.3:0",
        "srv:", "srv:a b", "file:", "a:b:c", "lan:240.0.0.1:5"}) {
    INFO(bad);
    const auto source = parse_source(bad);
    REQUIRE_FALSE(source);
    CHECK(source.error().code() == ec::invalid_argument);
    CHECK_FALSE(source.error().text().empty());
  }
}

TEST_CASE("discovery: files of addresses") {
  const AddressList list = parse_address_file(
      "# heads\n10.0.0.1:4700\n\n  head.example:4700  # the old one\r\n10.0.0.1:4700\nno "
      "port\n[::1]:5");
  CHECK(list.addresses == Strings{"10.0.0.1:4700", "head.example:4700", "[::1]:5"});
  CHECK(list.problems == Strings{"line 6: 'no port' is not \"host:port\""});
  std::string many;
  for (int i = 1; i <= 2000; ++i) {
    many += "h:" + std::to_string(i) + "\n";
  }
  CHECK(parse_address_file(many).addresses.size() == max_file_addresses);
  CHECK(parse_address_file(many).problems.size() == 1);
  CHECK(parse_address_file(std::string(5000, '\n') + std::string(5000, '\0')).problems.size() == 1);
}

TEST_CASE("discovery: SRV answers are ordered, and strange ones refused") {
  Dns dns(5);
  dns.srv(20, 0, 4700, "spare.example.org");
  dns.srv(10, 10, 4701, "light.example.org");
  dns.srv(10, 60, 4702, "heavy.example.org");
  dns.srv(10, 60, 4703, "heavy2.example.org");
  dns.srv(30, 0, 0, "");
  const auto records = parse_srv_answer(dns.bytes());
  REQUIRE(records);
  REQUIRE(records->size() == 5);
  CHECK((*records)[0].target == "heavy.example.org");
  CHECK((*records)[0].port == 4702);
  CHECK((*records)[1].target == "heavy2.example.org");
  CHECK((*records)[2].target == "light.example.org");
  CHECK((*records)[3].target == "spare.example.org");
  CHECK((*records)[4].target.empty());

  CHECK(parse_srv_answer(Dns(0, 3).bytes()).error().code() == ec::not_found);
  CHECK(parse_srv_answer(Dns(0, 2).bytes()).error().code() == ec::system_error);
  CHECK(parse_srv_answer({}).error().code() == ec::malformed);
  CHECK(parse_srv_answer(Dns(0).bytes())->empty());
  const auto whole = dns.bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CHECK_FALSE(parse_srv_answer(std::span{whole}.first(size)));
  }
  Dns compressed(1);
  compressed.raw("\xC0\x0C");
  compressed.big16(33);
  compressed.big16(1);
  compressed.raw(std::string(4, '\0'));
  compressed.big16(8);
  compressed.raw(std::string{"\0\1\0\2\x12\x5C\xC0\x0C", 8});
  REQUIRE(parse_srv_answer(compressed.bytes()));
  CHECK(parse_srv_answer(compressed.bytes())->at(0).target == "_troupe._tcp.example.org");
  // A pointer to itself.
  std::string loop = compressed.message;
  loop.back() = static_cast<char>(loop.size() - 2);
  CHECK(parse_srv_answer(bytes_of(loop)).error().code() == ec::malformed);
  Dns spaces(1);
  spaces.srv(1, 1, 1, "a b");
  CHECK_FALSE(parse_srv_answer(spaces.bytes()));
}

TEST_CASE("discovery: packets of the local network round-trip, changed ones are refused") {
  const LanPacket answer{LanKind::answer, 0x1122334455667788ULL, "demo", "10.0.0.1:4700"};
  const auto bytes = encode_lan(answer);
  const auto back = decode_lan(bytes);
  REQUIRE(back);
  CHECK(back->kind == answer.kind);
  CHECK(back->nonce == answer.nonce);
  CHECK(back->cluster == "demo");
  CHECK(back->address == "10.0.0.1:4700");
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    CHECK_FALSE(decode_lan(flipped));
  }
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    CHECK_FALSE(decode_lan(std::span{bytes}.first(size)));
  }
  CHECK(encode_lan({LanKind::query, 1, "", ""}).empty());
  CHECK(encode_lan({LanKind::query, 1, "demo", "a:1"}).empty());
  CHECK(encode_lan({LanKind::answer, 1, "demo", ""}).empty());
  CHECK(encode_lan({LanKind::query, 1, std::string(256, 'x'), ""}).empty());
  CHECK_FALSE(decode_lan(encode_lan({LanKind::answer, 1, "demo", "nonsense"})));
  CHECK(encode_lan({LanKind::answer, 1, std::string(255, 'x'), std::string(253, 'x') + ":1"})
            .size() == max_lan_packet);
  CHECK(fill_in_host("0.0.0.0:5", "10.1.1.1") == "10.1.1.1:5");
  CHECK(fill_in_host("[::]:5", "10.1.1.1") == "10.1.1.1:5");
  CHECK(fill_in_host("h:5", "10.1.1.1") == "h:5");
}

TEST_CASE("discovery: all sources in order, each address once, problems told") {
  const TempFile file("10.0.0.9:1\nlocal:7\n");
  DiscoveryConfig config;
  config.sources = {"10.0.0.1:4700",
                    "named:5",
                    "srv:_troupe._tcp.example.org",
                    "nonsense",
                    "file:" + file.path.string(),
                    "file:/nowhere/at/all",
                    "missing:1",
                    "[::1]:2"};
  config.resolve = [](const HostPort& where) -> expected<Strings> {
    if (where.host == "missing") {
      return fail(ec::not_found, "no such host");
    }
    return Strings{join_address("10.1.1.1", where.port), join_address("fd00::1", where.port)};
  };
  config.query_srv = [](const std::string&) -> expected<std::vector<std::byte>> {
    Dns dns(2);
    dns.srv(2, 0, 6, "later");
    dns.srv(1, 0, 5, "sooner");
    return dns.bytes();
  };
  const auto discovery = make_discovery(config);
  const AddressList found = find_wait(*discovery);
  CHECK(found.addresses == Strings{"10.0.0.1:4700", "10.1.1.1:5", "[fd00::1]:5", "10.1.1.1:6",
                                   "[fd00::1]:6", "10.0.0.9:1", "10.1.1.1:7", "[fd00::1]:7",
                                   "[::1]:2"});
  REQUIRE(found.problems.size() == 3);
  CHECK(found.problems[0].find("nonsense") != std::string::npos);
  CHECK(found.problems[1].find("/nowhere/at/all") != std::string::npos);
  CHECK(found.problems[2] == "cannot look up 'missing': no such host");
  // Looked up anew each time.
  file.write("10.0.0.8:1\n");
  const AddressList again = find_wait(*discovery);
  CHECK(again.addresses[5] == "10.0.0.8:1");
}

TEST_CASE("discovery: the system's resolver knows this host") {
  DiscoveryConfig config;
  config.sources = {"localhost:4700", "127.0.0.1:1"};
  const AddressList found = find_wait(*make_discovery(config));
  CHECK(found.problems.empty());
  CHECK(std::find(found.addresses.begin(), found.addresses.end(), "127.0.0.1:4700") !=
        found.addresses.end());
  CHECK(found.addresses.back() == "127.0.0.1:1");
}

TEST_CASE("discovery: a look-up that hangs blocks neither the search nor the end") {
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
    int inside = 0;
    int counted = 0;
  };
  const auto gate = std::make_shared<Gate>();
  DiscoveryConfig config;
  config.sources = {"hangs:1", "counts:1"};
  config.lookup_timeout = 50ms;
  config.resolve = [gate](const HostPort& where) -> expected<Strings> {
    std::unique_lock lock(gate->mutex);
    if (where.host == "counts") {
      ++gate->counted;
      gate->changed.notify_all();
      return Strings{"10.0.0.1:1"};
    }
    ++gate->inside;
    gate->changed.wait(lock, [&] { return gate->open; });
    return Strings{"10.9.9.9:1"};
  };
  auto discovery = make_discovery(config);
  for (int i = 0; i < 5; ++i) {
    const AddressList found = find_wait(*discovery);
    CHECK(found.addresses == Strings{"10.0.0.1:1"});
    CHECK(found.problems == Strings{"'hangs:1' has not answered in time"});
  }
  {
    const std::lock_guard lock(gate->mutex);
    CHECK(gate->inside == 1);  // not one thread more per search
  }
  std::atomic<int> called{0};
  const auto held = std::make_shared<int>(1);
  discovery->find([&called, held](const Strings&, const Strings&) { ++called; });
  {
    // One search is under way, another waits.
    std::unique_lock lock(gate->mutex);
    CHECK(gate->changed.wait_for(lock, 20s, [&] { return gate->counted == 6; }));
  }
  discovery->find([&called, held](const Strings&, const Strings&) { ++called; });
  discovery.reset();  // does not wait for the look-up
  const int before = called;
  CHECK(held.use_count() == 1);
  {
    const std::lock_guard lock(gate->mutex);
    gate->open = true;
    gate->changed.notify_all();
  }
  CHECK(called == before);
}

TEST_CASE("discovery: a handler may search again, and may destroy the discovery") {
  DiscoveryConfig config;
  config.sources = {"10.0.0.1:1"};
  auto discovery = make_discovery(config);
  std::promise<void> ended;
  Strings found;
  discovery->find([&](const Strings&, const Strings&) {
    discovery->find([&](Strings addresses, const Strings&) {
      found = std::move(addresses);
      discovery.reset();
      ended.set_value();
    });
  });
  REQUIRE(ended.get_future().wait_for(30s) == std::future_status::ready);
  CHECK(found == Strings{"10.0.0.1:1"});
}

TEST_CASE("discovery: a static list answers at once") {
  const auto discovery = static_discovery({"a:1", "b:2", "a:1"});
  Strings found;
  discovery->find([&](Strings addresses, const Strings& problems) {
    found = std::move(addresses);
    CHECK(problems.empty());
  });
  CHECK(found == Strings{"a:1", "b:2"});
}

TEST_CASE("discovery: nodes of the same cluster on the local network, garbage or not") {
  const std::string group = lan_of_this_test();
  LanResponder one;
  LanResponder two;
  LanResponder other;
  const auto started = one.start("demo", "10.0.0.1:4700", group);
  if (!started && started.error().code() == ec::system_error) {
    WARN("no multicast here: " << started.error().text());
    return;
  }
  REQUIRE(started);
  CHECK(one.start("demo", "10.0.0.1:4700", group).error().code() == ec::conflict);
  CHECK(LanResponder().start("", "10.0.0.1:4700").error().code() == ec::invalid_argument);
  CHECK(LanResponder().start("demo", "nonsense").error().code() == ec::invalid_argument);
  CHECK(LanResponder().start("demo", "a:1", "lan:10.0.0.1:5").error().code() ==
        ec::invalid_argument);
  REQUIRE(two.start("demo", "0.0.0.0:4701", group));
  REQUIRE(other.start("another", "10.0.0.3:4700", group));

  DiscoveryConfig config;
  config.cluster = "demo";
  config.sources = {group};
  const auto discovery = make_discovery(config);
  const auto ask = [&] {
    AddressList found = find_wait(*discovery);
    std::sort(found.addresses.begin(), found.addresses.end());
    return found;
  };
  const AddressList found = ask();
  CHECK(found.problems.empty());
  REQUIRE(found.addresses.size() >= 2);
  CHECK(found.addresses[0] == "10.0.0.1:4700");
  for (std::size_t i = 1; i < found.addresses.size(); ++i) {  // one per network of this host
    CHECK(found.addresses[i].find(":4701") != std::string::npos);
    CHECK(found.addresses[i].find("0.0.0.0") == std::string::npos);
  }
  CHECK(other.answered() == 0);
  CHECK(other.ignored() > 0);

  const auto lan = parse_lan_group(group);
  REQUIRE(lan);
  const auto ignored = one.ignored();
  send_garbage(*lan);
  CHECK(query_lan(*lan, "nobody", 50ms).addresses.empty());
  CHECK(query_lan(*lan, std::string(300, 'x'), 50ms).problems.size() == 1);
  CHECK(one.ignored() > ignored);
  CHECK(ask().addresses == found.addresses);

  one.stop();
  two.stop();
  const AddressList nobody = ask();
  CHECK(nobody.addresses.empty());
  CHECK(nobody.problems == Strings{"lan: no node of cluster 'demo' has answered"});
  REQUIRE(one.start("demo", "10.0.0.5:1", group));
  CHECK(ask().addresses == Strings{"10.0.0.5:1"});
}
