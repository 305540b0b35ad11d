// A node of its own process under 10,000 hostile inputs, from noise on the port to peers that break
// the protocol after a valid handshake, while it serves an honest node. Each offender loses its
// connection and nobody else anything; what the protocol tolerates is answered as promised.
#include <caf/all.hpp>
#include <catch2/catch.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <thread>

#include "net/caf_error.hpp"
#include "net/endpoint.hpp"
#include "runtime/node.hpp"
#include "tests/cluster/support/attacker.hpp"
#include "tests/support/messages.hpp"
#include "tests/support/process.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;
using net::RecordHeader;
using net::RecordKind;

namespace {

const bool quiet = [] {
  prepare_process();
  spdlog::set_level(spdlog::level::err);
  return true;
}();

using Clock = std::chrono::steady_clock;

const std::string cluster_name = "cluster-test";

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
constexpr int input_count = 1'500;
constexpr auto end_bound = 30s;
#else
constexpr bool sanitized = false;
constexpr int input_count = 10'000;
constexpr auto end_bound = 10s;
#endif

// -- the node under attack and its honest peer --------------------------------------------------

struct HonestState {
  std::uint64_t next = 0;
  std::uint64_t open = 0;
};

struct HonestProgress {
  std::atomic<std::uint64_t> answered{0};
  std::atomic<std::uint64_t> wrong{0};
  std::atomic<std::uint64_t> errors{0};
  std::atomic<bool> stop{false};
};

// Keeps a few requests going, numbered; the counter on the other side refuses gaps and repetitions.
caf::behavior honest_requester(caf::stateful_actor<HonestState>* self, caf::actor counter,
                               caf::actor control, HonestProgress* progress) {
  return {
      [=](caf::tick_atom) {
        auto& state = self->state;
        while (!progress->stop && state.open < 8) {
          const auto number = state.next++;
          state.open += 2;
          const auto check = [=](std::uint64_t answer) {
            progress->wrong += answer == number ? 0 : 1;
            ++progress->answered;
            --self->state.open;
            self->send(self, caf::tick_atom_v);
          };
          const auto failed = [=](caf::error&) {
            ++progress->errors;
            --self->state.open;
          };
          self->request(counter, caf::infinite, number).then(check, failed);
          self->request(control, caf::infinite, number).then(check, failed);
        }
      },
  };
}

struct Victim {
  HonestProgress progress;  // outlives the actors
  ChildProcess child{{TROUPE_TEST_PEER, cluster_name}};
  std::unique_ptr<Node> honest;
  NodeId id;
  std::string address;
  std::uint16_t port = 0;
  caf::actor requester;
  caf::actor echo;
  caf::actor burner;
  std::jthread reader;  // what the child's actors print must not fill the pipe

  Victim() {
    NodeOptions options;
    options.name = "honest";
    options.cluster = cluster_name;
    options.types = [](net::TypeRegistry& registry) { return add_test_types(registry); };
    auto started = Node::start(std::move(options));
    REQUIRE(started);
    honest = std::move(*started);
    const auto listening = child.read_until("listening ");
    REQUIRE(listening);
    address = *listening;
    port = net::parse_address(address)->port;
    const auto linked = honest->mesh().connect_wait(address);
    REQUIRE(linked);
    id = *linked;
    reader = std::jthread{[this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        child.read_line(50ms);
      }
    }};
    echo = find("echo");
    burner = find("burner");
    requester =
        honest->system().spawn(honest_requester, find("counter"), find("control"), &progress);
    caf::anon_send(requester, caf::tick_atom_v);
  }

  ~Victim() {
    progress.stop = true;
    caf::anon_send_exit(requester, caf::exit_reason::user_shutdown);
    honest->stop();
  }

  caf::actor find(const std::string& name) {
    const auto found = honest->mesh().find_wait(id, name);
    REQUIRE(found);
    return *found;
  }

  Knowledge knowledge() const {
    return {cluster_name, id, honest->id(), honest->address(), echo->id()};
  }

  bool still_serves() {
    const auto before = progress.answered.load();
    return eventually([&] { return progress.answered > before + 16; });
  }

  void check_unharmed() {
    CHECK(still_serves());
    CHECK(progress.wrong == 0);
    CHECK(progress.errors == 0);
    CHECK(honest->mesh().link_counters(id).connections == 1);
    CHECK_FALSE(child.wait(0ms));
  }
};

// -- connections under way ----------------------------------------------------------------------

/// Some connections at a time. Each place has a node id of its own, so that a new session of that
/// node replaces an old one only after its connection has been judged.
class Crowd {
 public:
  explicit Crowd(const Victim& victim) : port_(victim.port) {
    for (std::uint64_t i = 0; i < places; ++i) {
      ids_.push_back(NodeId::random());
    }
  }

  NodeId next_id() const { return ids_[begun_ % places]; }

  void begin(const Attempt& attempt, int number, PhiloxStream& random) {
    if (open_.size() == places) {
      settle();
    }
    ++begun_;
    ++kinds[attempt.kind];
    auto intruder = std::make_unique<Intruder>(port_);
    REQUIRE(intruder->connected());
    intruder->send(attempt.bytes);
    if (attempt.fate == Fate::ends_eof) {
      if (random.below(4) == 0) {
        intruder->close_abruptly();
        return;  // nobody is left to see its end
      }
      intruder->half_close();
    }
    open_.push_back({std::move(intruder), attempt.kind, number});
  }

  /// Waits for the end of the oldest.
  void settle() {
    const auto oldest = std::move(open_.front());
    open_.pop_front();
    INFO("input " << oldest.number << " (" << oldest.kind << ") must lose its connection");
    CHECK(oldest.intruder->wait_for_end(end_bound));
  }

  void settle_all() {
    while (!open_.empty()) {
      settle();
    }
  }

  std::map<std::string, int> kinds;

 private:
  static constexpr std::size_t places = 32;
  struct Entry {
    std::unique_ptr<Intruder> intruder;
    const char* kind = "";
    int number = 0;
  };
  const std::uint16_t port_;
  std::vector<NodeId> ids_;
  std::deque<Entry> open_;
  std::uint64_t begun_ = 0;
};

/// Connections that send a byte now and then. A deadline ends them however busy they look.
class SlowWriters {
 public:
  explicit SlowWriters(std::uint16_t port) {
    const auto id = NodeId::random();
    const auto hello = hello_bytes(plausible_hello(id, cluster_name, 1));
    add(port, "", "GET / HTTP/1.1\r\nHeader: " + std::string(10'000, 'x'));
    add(port, "GET / HTTP/1.1\r\n", "Header: " + std::string(10'000, 'x'));
    // Bodies of the handshake are short: one byte each half second would outlast its deadline.
    add(port, upgrade_request(id, cluster_name), hello.substr(0, 20));
    add(port, upgrade_request(id, cluster_name) + hello.substr(0, sizeof(net::FrameHeader) + 2),
        hello.substr(sizeof(net::FrameHeader) + 2, 20));
    add(port, upgrade_request(id, cluster_name), "");
    add(port, "", "");
  }

  /// Whether all have lost their connection within `limit`.
  bool all_end(std::chrono::milliseconds limit) {
    const auto stop = Clock::now() + limit;
    while (Clock::now() < stop) {
      const bool over = std::all_of(writers_.begin(), writers_.end(),
                                    [](const Writer& writer) { return writer.intruder->ended(); });
      if (over) {
        return true;
      }
      for (auto& writer : writers_) {
        if (!writer.intruder->ended() && writer.sent < writer.rest.size()) {
          writer.intruder->send(std::string_view{writer.rest}.substr(writer.sent++, 1));
        }
        writer.intruder->wait_for_end(80ms);
      }
    }
    return false;
  }

 private:
  struct Writer {
    std::unique_ptr<Intruder> intruder;
    std::string rest;
    std::size_t sent = 0;
  };

  void add(std::uint16_t port, const std::string& start, std::string rest) {
    auto intruder = std::make_unique<Intruder>(port);
    REQUIRE(intruder->connected());
    intruder->send(start);
    writers_.push_back({std::move(intruder), std::move(rest)});
  }

  std::vector<Writer> writers_;
};

}  // namespace

TEST_CASE("10,000 hostile inputs against a live port cost nobody but their senders", "[cluster]") {
  const auto seed = test_seed("hostile inputs");
  Victim victim;
  REQUIRE(victim.still_serves());
  Attacker attacker{seed, victim.knowledge()};
  Crowd crowd{victim};
  std::atomic<bool> slow_ended{false};
  SlowWriters slow_writers{victim.port};
  std::jthread slow{[&] { slow_ended = slow_writers.all_end(60s); }};
  std::size_t base = 0;
  std::size_t peak = 0;
  for (int i = 0; i < input_count; ++i) {
    const auto attempt = attacker.next(crowd.next_id());
    crowd.begin(attempt, i, attacker.random());
    if (i % 100 == 0) {
      INFO("after input " << i << " (" << attempt.kind << ")");
      REQUIRE(victim.still_serves());
      const auto now = resident_bytes(victim.child.pid());
      base = i <= 300 ? now : base;
      peak = std::max(peak, now);
    }
  }
  crowd.settle_all();
  slow.join();
  CHECK(slow_ended);
  victim.check_unharmed();
  for (const auto& [kind, count] : crowd.kinds) {
    UNSCOPED_INFO(kind << ": " << count);
  }
  UNSCOPED_INFO("resident memory " << base << ", at most " << peak);
  CHECK(crowd.kinds.size() >= 30);
  if (!sanitized) {
    CHECK(peak < base + (std::size_t{64} << 20U));
  }
  // The port serves newcomers as before.
  NodeOptions options;
  options.name = "newcomer";
  options.cluster = cluster_name;
  options.types = [](net::TypeRegistry& registry) { return add_test_types(registry); };
  auto newcomer = Node::start(std::move(options));
  REQUIRE(newcomer);
  const auto linked = (*newcomer)->mesh().connect_wait(victim.address);
  REQUIRE(linked);
  const auto echo = (*newcomer)->mesh().find_wait(*linked, "echo");
  REQUIRE(echo);
  {
    caf::scoped_actor self{(*newcomer)->system()};
    self->request(*echo, 20s, std::uint64_t{1})
        .receive([](std::uint64_t answer) { CHECK(answer == 1); },
                 [](const caf::error& err) { FAIL(describe(err)); });
  }
  (*newcomer)->stop();
}

namespace {

// A peer that has joined properly and then misbehaves within what the protocol tolerates.
struct Guest {
  Intruder intruder;
  std::uint64_t sequence = 0;

  Guest(const Victim& victim, std::uint64_t session) : intruder(victim.port) {
    const auto id = NodeId::random();
    REQUIRE(intruder.connected());
    intruder.send(upgrade_request(id, cluster_name) +
                  hello_bytes(plausible_hello(id, cluster_name, session)));
  }

  bool say(RecordHeader header, const std::string& body = {}, std::uint8_t lane = 1) {
    return intruder.send(frame({.lane = lane, .sequence = ++sequence}, record(header, body)));
  }

  /// The id of a published actor, asked for over the link: also proves that the link works.
  std::uint64_t find(const std::string& name) {
    RecordHeader question;
    question.kind = RecordKind::find;
    question.mid = 4711;
    say(question, name, 0);
    const auto answer = intruder.next_record(RecordKind::found);
    REQUIRE(answer);
    CHECK(answer->header.mid == 4711);
    return answer->header.source;
  }

  /// The error in the answer to a request of `body`.
  caf::error request(std::uint64_t target, const std::string& body) {
    RecordHeader header;
    header.source = 99;
    header.target = target;
    header.mid = async_mid | 5;
    say(header, body);
    const auto answer = intruder.next_record(RecordKind::message);
    REQUIRE(answer);
    CHECK(answer->header.target == 99);
    CHECK(answer->header.mid == (header.mid | caf::message_id::response_flag_mask));
    const auto message =
        net::decode_message(types(), std::as_bytes(std::span{answer->body}), nullptr, nullptr);
    REQUIRE(message);
    REQUIRE(message->match_elements<caf::error>());
    return message->get_as<caf::error>(0);
  }
};

std::string unknown_type_body() {
  return number_text(1, 4) + number_text(0xDEADBEEF, 4) + number_text(0, 4);
}

}  // namespace

TEST_CASE("nonsense within well-formed frames is answered and the connection stays", "[cluster]") {
  Victim victim;
  Guest guest{victim, 1};
  const auto echo = guest.find("echo");
  CHECK(echo == victim.echo->id());
  RecordHeader header;
  header.target = echo;
  header.mid = async_mid;

  SECTION("an asynchronous message that cannot be decoded is reported") {
    guest.say(header, "no message");
    auto report = guest.intruder.next_record(RecordKind::undeliverable);
    REQUIRE(report);
    CHECK(report->header.source == echo);
    guest.say(header, unknown_type_body());
    report = guest.intruder.next_record(RecordKind::undeliverable);
    REQUIRE(report);
    const auto reason =
        net::decode_message(types(), std::as_bytes(std::span{report->body}), nullptr, nullptr);
    REQUIRE(reason);
    REQUIRE(reason->match_elements<caf::error>());
    CHECK(reason->get_as<caf::error>(0) == ec::unknown_type);
  }
  SECTION("a request that cannot be decoded is answered with the reason") {
    auto reason = guest.request(echo, "no message");
    INFO(describe(reason));
    CHECK(reason == ec::malformed);
    reason = guest.request(echo, unknown_type_body());
    INFO(describe(reason));
    CHECK(reason == ec::unknown_type);
  }
  SECTION("a request to nobody is answered") {
    CHECK(guest.request(nobody, encoded(caf::make_message(std::uint64_t{1}))) ==
          caf::sec::request_receiver_down);
    // Known to the honest node, but not to this one.
    CHECK(guest.request(victim.burner->id(), encoded(caf::make_message(std::uint64_t{1}))) ==
          caf::sec::request_receiver_down);
  }
  SECTION("stream messages do not reach an actor") {
    for (const std::uint64_t category : {2, 3}) {
      header.mid = (category << caf::message_id::category_offset) | 1;
      guest.say(header, encoded(caf::make_message(std::uint64_t{1})));
    }
  }
  SECTION("answers to nothing, unknown kinds, duplicates and records about nobody are ignored") {
    header.source = 12;
    header.mid = caf::message_id::response_flag_mask | async_mid | 77;
    guest.say(header, encoded(caf::make_message(std::uint64_t{1})));
    for (int kind = 2; kind < 256; ++kind) {
      if (kind != static_cast<int>(RecordKind::find)) {
        RecordHeader odd;
        odd.kind = static_cast<RecordKind>(kind);
        odd.source = nobody + 1;
        odd.target = nobody;
        odd.mid = 3;
        guest.say(odd, "body");
      }
    }
    guest.intruder.send(frame({.sequence = 1}, record(header, "seen already")));
  }
  SECTION("an exit message to an actor that this node does not know is ignored") {
    header.target = victim.burner->id();
    guest.say(header,
              encoded(caf::make_message(caf::exit_msg{caf::actor_addr{}, caf::exit_reason::kill})));
    caf::scoped_actor self{victim.honest->system()};
    guest.find("echo");
    self->request(victim.burner, 20s, std::uint64_t{0})
        .receive([] {}, [](const caf::error& err) { FAIL(describe(err)); });
  }
  // The link works as before.
  CHECK(guest.find("echo") == echo);
  victim.check_unharmed();
}

TEST_CASE("a peer that sends more than its credit loses its connection", "[cluster]") {
  Victim victim;
  Guest guest{victim, 1};
  RecordHeader header;
  header.target = guest.find("burner");
  header.mid = async_mid;
  // The actor is busy while 9 MB of messages for it arrive on a lane with a window of 8 MB.
  guest.say(header, encoded(caf::make_message(std::uint64_t{2000})), 0);
  const auto small = record(header, encoded(caf::make_message(std::uint64_t{0})));
  std::string payload;
  while (payload.size() < 200'000) {
    payload += small;
  }
  for (std::size_t sent = 0; sent < (std::size_t{9} << 20U); sent += payload.size()) {
    guest.intruder.send(frame({.lane = 0, .sequence = ++guest.sequence}, payload));
  }
  CHECK(guest.intruder.wait_for_end(end_bound));
  victim.check_unharmed();
}

TEST_CASE("a peer that asks for answers and acknowledges none does not fill the memory",
          "[owed][cluster]") {
  Victim victim;
  Guest guest{victim, 1};
  RecordHeader header;
  header.target = guest.find("echo");
  header.mid = async_mid;
  std::string payload;
  while (payload.size() < 200'000) {
    payload += record(header, "");  // each is answered by a report
  }
  const auto before = resident_bytes(victim.child.pid());
  std::atomic<bool> over{false};
  std::jthread reader{[&] {
    while (!over && !guest.intruder.wait_for_end(10ms)) {
    }
  }};
  std::size_t peak = 0;
  bool open = true;
  for (std::size_t sent = 0; open && sent < (std::size_t{512} << 20U); sent += payload.size()) {
    open = guest.intruder.send(
        frame({.sequence = ++guest.sequence, .credit = std::uint64_t{1} << 62U}, payload));
    peak = std::max(peak, resident_bytes(victim.child.pid()));
  }
  over = true;
  reader.join();
  CHECK(guest.intruder.wait_for_end(end_bound));
  if (!sanitized) {
    // The queue's bound, what is on its way, and the allocator's share.
    CHECK(peak < before + (std::size_t{160} << 20U));
  }
  victim.check_unharmed();
}
