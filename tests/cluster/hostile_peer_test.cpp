// A node of its own process under 10,000 hostile inputs, from noise on the port to peers that break the
// protocol after a valid handshake, while it serves an honest node. Each offender loses its connection
// and nobody else anything; what the protocol tolerates is answered as promised.
#include <catch2/catch.hpp>
#include <caf/all.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <thread>

#include "net/caf_error.hpp"
#include "net/endpoint.hpp"
#include "net/message_codec.hpp"
#include "runtime/node.hpp"
#include "tests/cluster/support/intruder.hpp"
#include "tests/support/messages.hpp"
#include "tests/support/process.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;
using net::FrameType;
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
constexpr std::uint64_t async_mid = caf::message_id::default_async_value;
// Ids from here on are nobody's: a link to an actor in use would take it along, as it would locally.
constexpr std::uint64_t nobody = std::uint64_t{1} << 40U;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
constexpr int input_count = 1'500;
constexpr auto end_bound = 30s;
#else
constexpr bool sanitized = false;
constexpr int input_count = 10'000;
constexpr auto end_bound = 10s;
#endif

// -- the node under attack and its honest peer ---------------------------------------------------------

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
  ChildProcess child{{TROUPE_TEST_PEER, cluster_name}};
  std::unique_ptr<Node> honest;
  NodeId id;
  std::string address;
  std::uint16_t port = 0;
  HonestProgress progress;
  caf::actor requester;
  caf::actor echo;
  caf::actor burner;
  std::atomic<bool> over{false};
  std::thread reader;  // what the child's actors print must not fill the pipe

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
    reader = std::thread{[this] {
      while (!over) {
        child.read_line(50ms);
      }
    }};
    echo = find("echo");
    burner = find("burner");
    requester = honest->system().spawn(honest_requester, find("counter"), find("control"),
                                       &progress);
    caf::anon_send(requester, caf::tick_atom_v);
  }

  ~Victim() {
    progress.stop = true;
    caf::anon_send_exit(requester, caf::exit_reason::user_shutdown);
    over = true;
    reader.join();
    honest->stop();
  }

  caf::actor find(const std::string& name) {
    const auto found = honest->mesh().find_wait(id, name);
    REQUIRE(found);
    return *found;
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

// -- inputs --------------------------------------------------------------------------------------------

/// What must become of the connection.
enum class Fate {
  ends,      ///< the node ends it by itself
  ends_eof,  ///< it ends at the latest when the sender says that nothing follows
};

struct Attempt {
  const char* kind = "";
  std::string bytes;
  Fate fate = Fate::ends_eof;
};

const net::TypeRegistry& types() {
  static const auto registry = [] {
    auto filled = std::make_unique<net::TypeRegistry>();
    REQUIRE(add_test_types(*filled));
    filled->freeze();
    return filled;
  }();
  return *registry;
}

std::string encoded(const caf::message& content) {
  net::EncodedBody body;
  REQUIRE_FALSE(net::encode_message(types(), content.content(), nullptr, body, false));
  return text_of(body.flatten());
}

std::string number_text(std::uint64_t value, std::size_t bytes) {
  return {reinterpret_cast<const char*>(&value), bytes};
}

std::string handle_text(const NodeId& node, std::uint64_t id, const std::string& address) {
  return number_text(1, 1) + number_text(node.high(), 8) + number_text(node.low(), 8) +
         number_text(id, 8) + number_text(address.size(), 4) + address;
}

// A message of one HandleBox whose handle names any actor.
std::string handle_box(const NodeId& node, std::uint64_t id, const std::string& address) {
  const std::string payload = number_text(5, 4) + "label" + handle_text(node, id, address);
  return number_text(1, 4) + number_text(net::type_tag("test.handle_box"), 4) +
         number_text(payload.size(), 4) + payload;
}

class Attacker {
 public:
  Attacker(std::uint64_t seed, const Victim& victim)
      : random_(seed, 7),
        victim_id_(victim.id),
        honest_id_(victim.honest->id()),
        honest_address_(victim.honest->address()),
        echo_id_(victim.echo->id()) {
    bodies_ = {
        encoded(caf::make_message(std::uint64_t{7})),
        encoded(caf::make_message(std::string{"some text"})),
        encoded(caf::make_message(std::vector<double>{1, 2, 3})),
        encoded(caf::make_message(Numbered{5, "five"})),
        encoded(caf::make_message(HandleBox{"empty", {}})),
        encoded(caf::make_message(std::vector<std::string>{"a", "b"})),
        encoded(caf::make_message(std::map<std::string, std::string>{{"k", "v"}})),
        encoded(caf::make_message(caf::make_message(std::uint64_t{1}, caf::make_message()))),
        encoded(caf::make_message(std::uint64_t{1}, std::string{"two"}, 3.0)),
    };
  }

  PhiloxStream& random() { return random_; }

  /// The next input, of a peer that may use `node` for itself.
  Attempt next(const NodeId& node) {
    node_ = node;
    switch (random_.below(24)) {
      case 0:
        return {"noise", random_bytes(random_, 1 + random_.below(4000)), Fate::ends_eof};
      case 1:
      case 2:
        return broken_http();
      case 3:
      case 4:
        return broken_upgrade();
      case 5:
        return {"heartbeat noise",
                upgrade_request(node_, cluster_name, "heartbeat") + random_bytes(random_, 32),
                Fate::ends};
      case 6:
        return {"no hello", upgrade_request(node_, cluster_name) + random_bytes(random_, 48),
                Fate::ends};
      case 7:
      case 8:
        return broken_hello();
      default:
        return random_.below(3) == 0 ? tolerated_records() : broken_frames();
    }
  }

 private:
  // Everything up to a link.
  std::string joined() {
    session_ = random_word(random_);
    return upgrade_request(node_, cluster_name) +
           hello_bytes(plausible_hello(node_, cluster_name, session_));
  }

  std::string mutated(std::string text) {
    for (std::uint64_t i = 0, n = 1 + random_.below(4); i < n && !text.empty(); ++i) {
      const auto at = random_.below(text.size());
      switch (random_.below(4)) {
        case 0:
          text.resize(at);
          break;
        case 1:
          text.insert(at, random_bytes(random_, 1 + random_.below(16)));
          break;
        case 2:
          for (std::size_t k = at; k < std::min<std::size_t>(at + 4, text.size()); ++k) {
            text[k] = static_cast<char>(0xFF);
          }
          break;
        default:
          text[at] = static_cast<char>(text[at] ^ (1 << random_.below(8)));
      }
    }
    return text;
  }

  void flip_bits(std::string& text, std::size_t from) {
    const auto at = from + random_.below(text.size() - from);
    text[at] = static_cast<char>(text[at] ^ (1 << random_.below(8)));
  }

  Attempt broken_http() {
    static const std::array<std::string, 3> valid{
        "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"};
    static const std::array<const char*, 6> sizes{"4294967296", "18446744073709551615",
                                                  "99999999999999999999", "-1", "0x10", "2000000"};
    switch (random_.below(5)) {
      case 0:
        return {"http, mutated", mutated(valid[random_.below(valid.size())]), Fate::ends_eof};
      case 1:
        return {"http, long target",
                "GET /" + std::string(20'000 + random_.below(80'000), 'a') + " HTTP/1.1\r\n\r\n",
                Fate::ends};
      case 2:
        return {"http, long header",
                "GET / HTTP/1.1\r\n" + std::string(20'000 + random_.below(40'000), 'h') +
                    ": 1\r\n\r\n",
                Fate::ends};
      case 3:
        return {"http, body size",
                "POST /livez HTTP/1.1\r\nContent-Length: " +
                    std::string{sizes[random_.below(sizes.size())]} + "\r\n\r\n" +
                    random_bytes(random_, random_.below(2000)),
                Fate::ends_eof};
      default:
        return {"http, chunk size",
                "POST /livez HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n" +
                    random_bytes(random_, random_.below(2000)),
                Fate::ends_eof};
    }
  }

  Attempt broken_upgrade() {
    std::string text = upgrade_request(node_, cluster_name);
    switch (random_.below(6)) {
      case 0: {  // one header is missing
        static const std::array<std::string, 5> names{"Upgrade: ", "Connection: ", "Troupe-Node: ",
                                                      "Troupe-Cluster: ", "Troupe-Purpose: "};
        const auto start = text.find("\r\n" + names[random_.below(names.size())]);
        text.erase(start, text.find("\r\n", start + 2) - start);
        return {"upgrade, header missing", text, Fate::ends};
      }
      case 1:
        return {"upgrade, other cluster", upgrade_request(node_, "elsewhere"), Fate::ends};
      case 2:
        return {"upgrade, own id", upgrade_request(victim_id_, cluster_name), Fate::ends};
      case 3:
        return {"upgrade, no id", upgrade_request(NodeId{}, cluster_name), Fate::ends};
      case 4:
        return {"upgrade, purpose", upgrade_request(node_, cluster_name, "nonsense"), Fate::ends};
      default:
        return {"upgrade, mutated", mutated(text), Fate::ends_eof};
    }
  }

  Attempt broken_hello() {
    const std::string start = upgrade_request(node_, cluster_name);
    auto hello = plausible_hello(node_, cluster_name, random_word(random_));
    switch (random_.below(9)) {
      case 0: {
        std::string text = start + hello_bytes(hello);
        flip_bits(text, start.size());
        return {"hello, damaged", text, Fate::ends};
      }
      case 1: {  // damaged, but with the right checksum: may even be plausible
        std::string payload = hello_bytes(hello).substr(sizeof(net::FrameHeader));
        return {"hello, mutated",
                start + frame({FrameType::hello, 0, 0}, mutated(payload)), Fate::ends_eof};
      }
      case 2:
        hello.node = NodeId{random_word(random_), random_word(random_)};
        return {"hello, other node", start + hello_bytes(hello), Fate::ends};
      case 3:
        hello.cluster = "elsewhere";
        return {"hello, other cluster", start + hello_bytes(hello), Fate::ends};
      case 4:
        hello.version_min = hello.version_max = 2 + static_cast<std::uint32_t>(random_.below(100));
        return {"hello, other version", start + hello_bytes(hello), Fate::ends};
      case 5:
        hello.expects = random_word(random_) | 1U;
        return {"hello, unknown session", start + hello_bytes(hello), Fate::ends};
      case 6:
        hello.received = 1 + random_.below(1000);
        return {"hello, acknowledges", start + hello_bytes(hello), Fate::ends};
      case 7:
        hello.name = std::string(5000, 'n');
        return {"hello, oversized", start + hello_bytes(hello), Fate::ends};
      default: {
        static constexpr std::array<FrameType, 5> others{FrameType::welcome, FrameType::reject,
                                                         FrameType::records, FrameType::ack,
                                                         FrameType::goodbye};
        return {"hello, other frame", start + frame({others[random_.below(others.size())]}, ""),
                Fate::ends};
      }
    }
  }

  std::string any_record() {
    RecordHeader header;
    header.target = random_word(random_) | nobody;
    header.mid = async_mid;
    return record(header, bodies_[random_.below(bodies_.size())]);
  }

  // Each breaks the protocol beyond doubt.
  Attempt broken_frames() {
    std::string text = joined();
    const auto lane = static_cast<std::uint8_t>(random_.below(2));
    std::uint64_t sequence = 1;
    for (std::uint64_t i = 0, n = random_.below(3); i < n; ++i) {  // begins well
      text += frame({.lane = lane, .sequence = sequence++}, any_record());
    }
    const FrameFields next{.lane = lane, .sequence = sequence};
    switch (random_.below(14)) {
      case 0: {
        const auto at = text.size();
        text += frame(next, any_record());
        flip_bits(text, at);
        return {"frame, damaged", text, Fate::ends};
      }
      case 1: {
        FrameFields huge = next;
        static constexpr std::array<std::uint32_t, 4> lengths{0xFFFFFFFFU, 0x80000000U, 1U << 20U,
                                                              (1U << 18U) + 49U};
        huge.length = lengths[random_.below(lengths.size())];
        if (random_.below(2) == 0) {
          huge.type = FrameType::fragment;
        }
        return {"frame, up to 4 GB", text + frame(huge, any_record()), Fate::ends};
      }
      case 2:
        return {"frame, gap",
                text + frame({.lane = lane, .sequence = sequence + 1 + random_.below(1000)},
                             any_record()),
                Fate::ends};
      case 3:
        return {"frame, acknowledges",
                text + frame({.lane = lane, .sequence = sequence,
                              .ack = 1'000'000 + random_word(random_) / 2},
                             any_record()),
                Fate::ends};
      case 4:
        return {"frame, ack with payload", text + frame({FrameType::ack}, "payload!"), Fate::ends};
      case 5:
        return {"frame, second hello",
                text + hello_bytes(plausible_hello(node_, cluster_name, session_)), Fate::ends};
      case 6:
        return {"frame, lane",
                text + frame({.lane = static_cast<std::uint8_t>(2 + random_.below(254)),
                              .sequence = sequence},
                             any_record()),
                Fate::ends};
      case 7:
        return {"frame, type",
                text + frame({.type = static_cast<FrameType>(8 + random_.below(248)),
                              .sequence = sequence},
                             any_record()),
                Fate::ends};
      case 8:
        return {"records, cut header",
                text + frame(next, any_record() + random_bytes(random_, 1 + random_.below(31))),
                Fate::ends};
      case 9: {
        RecordHeader header;
        header.target = nobody;
        header.mid = async_mid;
        const auto size = 41U + static_cast<std::uint32_t>(random_.below(0xFFFFFFFFU - 41U));
        return {"records, size", text + frame(next, record(header, std::string(40, 'x'), size)),
                Fate::ends};
      }
      case 10: {  // totals and offsets
        static constexpr std::array<std::uint64_t, 4> totals{
            ~std::uint64_t{0}, std::uint64_t{1} << 32U, (std::uint64_t{1} << 30U) + 41, 31};
        return {"fragment, total",
                text + fragment(next, totals[random_.below(totals.size())], 0, std::string(64, 'f')),
                Fate::ends};
      }
      case 11: {
        static constexpr std::array<std::uint64_t, 4> offsets{~std::uint64_t{0}, 4096 - 63, 8,
                                                              ~std::uint64_t{0} - 32};
        return {"fragment, offset",
                text + fragment(next, 4096, offsets[random_.below(offsets.size())],
                                std::string(64, 'f')),
                Fate::ends};
      }
      case 12: {  // the second part does not continue the first
        text += fragment(next, 1U << 20U, 0, random_bytes(random_, 1000));
        const FrameFields second{.lane = lane, .sequence = sequence + 1};
        return {"fragment, gap",
                text + (random_.below(2) == 0 ? fragment(second, 1U << 20U, 1001, "data")
                                              : fragment(second, 1U << 19U, 1000, "data")),
                Fate::ends};
      }
      default: {  // whole, but the record in it has another size
        RecordHeader header;
        header.mid = async_mid;
        const auto whole = record(header, std::string(400, 'w'), 8);
        return {"fragment, record size", text + fragment(next, whole.size(), 0, whole), Fate::ends};
      }
    }
  }

  // Well-formed frames whose records are nonsense or impossible. They cost their sender nothing but the
  // answer; some are meant for an actor in use.
  Attempt tolerated_records() {
    std::string text = joined();
    RecordHeader claim;
    claim.kind = RecordKind::claim;
    claim.target = echo_id_;
    std::string payload = random_.below(2) == 0 ? record(claim, "") : std::string{};
    for (std::uint64_t i = 0, n = 1 + random_.below(12); i < n; ++i) {
      payload += random_.below(2) == 0 ? nonsense_message() : nonsense_record();
    }
    const auto lane = static_cast<std::uint8_t>(random_.below(2));
    if (random_.below(4) == 0) {  // as fragments
      RecordHeader header;
      header.target = echo_id_;
      header.mid = async_mid;
      const auto whole = record(header, random_bytes(random_, 3000 + random_.below(100'000)));
      const auto half = whole.size() / 2;
      text += fragment({.lane = lane, .sequence = 1}, whole.size(), 0, whole.substr(0, half));
      if (random_.below(2) == 0) {  // sometimes only half of it ever comes
        text += fragment({.lane = lane, .sequence = 2}, whole.size(), half, whole.substr(half));
      }
      return {"records in fragments", text, Fate::ends_eof};
    }
    text += frame({.lane = lane}, payload);
    if (random_.below(4) == 0) {
      text += frame({.lane = lane}, payload);  // a duplicate is ignored
    }
    if (random_.below(4) == 0) {
      text += text_of(net::reject_frame(FrameType::goodbye, {ec::closed, "enough"}));
      return {"records and goodbye", text, Fate::ends};
    }
    return {"records", text, Fate::ends_eof};
  }

  std::string nonsense_message() {
    RecordHeader header;
    header.kind = RecordKind::message;
    header.target = random_.below(2) == 0 ? echo_id_ : random_word(random_);
    std::string body = bodies_[random_.below(bodies_.size())];
    switch (random_.below(6)) {
      case 0:
        body = random_bytes(random_, random_.below(300));
        break;
      case 1: {  // a handle of anybody
        const NodeId nodes[] = {node_, victim_id_, honest_id_,
                                NodeId{random_word(random_), random_word(random_)}};
        const std::string addresses[] = {"", "127.0.0.1:1", "no address", honest_address_};
        // Each foreign node is dialled: not too many of them.
        const auto which = random_.below(8) == 0 ? 3 : random_.below(3);
        body = handle_box(nodes[which], random_word(random_) | nobody,
                          addresses[random_.below(4)]);
        break;
      }
      case 2:  // deeply nested
        for (std::uint64_t i = 0, n = random_.below(100); i < n; ++i) {
          body = number_text(1, 4) + number_text(net::type_tag("message"), 4) +
                 number_text(body.size() + 4, 4) + number_text(body.size(), 4) + body;
        }
        break;
      default:
        body = mutated(body);
    }
    switch (random_.below(5)) {
      case 0:
        header.mid = async_mid;
        break;
      case 1:  // a request
        header.mid = async_mid | (1 + random_.below(1000));
        header.source = random_word(random_);
        break;
      case 2:  // an answer to nothing
        header.mid = caf::message_id::response_flag_mask | async_mid | (1 + random_.below(1000));
        header.source = random_word(random_) | nobody;
        break;
      case 3:  // of a stream
        header.mid = random_word(random_) | (std::uint64_t{2} << caf::message_id::category_offset);
        break;
      default:  // from a third node, whose name may be broken
        header.mid = async_mid | (1 + random_.below(1000));
        header.flags = net::record_flags::source_is_foreign;
        header.extra = static_cast<std::uint16_t>(random_.below(4) == 0 ? random_() : 28);
        body = number_text(node_.high(), 8) + number_text(node_.low(), 8) +
               number_text(random_word(random_), 8) + number_text(0, 4) + std::string(4, '\0') +
               body;
    }
    return record(header, body);
  }

  std::string nonsense_record() {
    static constexpr std::array<RecordKind, 9> kinds{
        RecordKind::down, RecordKind::link, RecordKind::unlink, RecordKind::release,
        RecordKind::claim, RecordKind::find, RecordKind::found, RecordKind::undeliverable,
        static_cast<RecordKind>(200)};
    RecordHeader header;
    header.kind = kinds[random_.below(kinds.size())];
    header.flags = static_cast<std::uint8_t>(random_());
    header.extra = static_cast<std::uint16_t>(random_());
    const bool takes_along = header.kind == RecordKind::link || header.kind == RecordKind::unlink;
    const auto any_id = [&] {
      const auto word = random_word(random_);
      return takes_along ? word | nobody : (random_.below(2) == 0 ? word : word % 200);
    };
    header.source = any_id();
    header.target = any_id();
    header.mid = random_word(random_);
    return record(header, random_.below(2) == 0 ? random_bytes(random_, random_.below(200))
                                                : bodies_[random_.below(bodies_.size())]);
  }

  PhiloxStream random_;
  const NodeId victim_id_;
  const NodeId honest_id_;
  const std::string honest_address_;
  const std::uint64_t echo_id_;
  NodeId node_;
  std::uint64_t session_ = 0;
  std::vector<std::string> bodies_;
};

// -- connections under way -----------------------------------------------------------------------------

/// Some connections at a time. Each place has a node id of its own, so that a new session of that node
/// replaces an old one only after its connection has been judged.
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
      const bool over = std::all_of(writers_.begin(), writers_.end(), [](const Writer& writer) {
        return writer.intruder->ended();
      });
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
  Attacker attacker{seed, victim};
  Crowd crowd{victim};
  std::atomic<bool> slow_ended{false};
  SlowWriters slow_writers{victim.port};
  std::thread slow{[&] { slow_ended = slow_writers.all_end(60s); }};
  std::size_t base = 0;
  std::size_t peak = 0;
  for (int i = 0; i < input_count; ++i) {
    const auto attempt = attacker.next(crowd.next_id());
    crowd.begin(attempt, i, attacker.random());
    if (i % 100 == 0) {
      const bool serves = victim.still_serves();
      if (!serves) {
        slow.join();
      }
      INFO("after input " << i << " (" << attempt.kind << ")");
      REQUIRE(serves);
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
    const auto message = net::decode_message(
        types(), std::as_bytes(std::span{answer->body}), nullptr, nullptr);
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
    const auto reason = net::decode_message(types(), std::as_bytes(std::span{report->body}),
                                            nullptr, nullptr);
    REQUIRE(reason);
    REQUIRE(reason->match_elements<caf::error>());
    CHECK(reason->get_as<caf::error>(0) == ec::unknown_type);
  }
  SECTION("a request that cannot be decoded is answered with the reason") {
    CHECK(guest.request(echo, "no message") == ec::malformed);
    CHECK(guest.request(echo, unknown_type_body()) == ec::unknown_type);
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
    guest.say(header, encoded(caf::make_message(
                          caf::exit_msg{caf::actor_addr{}, caf::exit_reason::kill})));
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
