// Why: the hostile inputs of the cluster tests, drawn from a seed: from noise over broken HTTP,
// upgrades and handshakes to frames and records that break the protocol, or bend it, behind a valid
// handshake. Each input says what must become of its connection.
// Thread-safety: functions are pure; an `Attacker` belongs to one thread.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "net/message_codec.hpp"
#include "tests/cluster/support/intruder.hpp"
#include "tests/support/messages.hpp"

namespace troupe::test {

using net::FrameType;
using net::RecordHeader;
using net::RecordKind;

inline constexpr std::uint64_t async_mid = caf::message_id::default_async_value;
// Ids from here on are nobody's: a link to an actor in use would take that along, as among locals.
inline constexpr std::uint64_t nobody = std::uint64_t{1} << 40U;

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

inline const net::TypeRegistry& types() {
  static const auto registry = [] {
    auto filled = std::make_unique<net::TypeRegistry>();
    if (auto added = add_test_types(*filled); !added) {
      throw std::logic_error(added.error().text());
    }
    filled->freeze();
    return filled;
  }();
  return *registry;
}

inline std::string encoded(const caf::message& content) {
  net::EncodedBody body;
  if (auto err = net::encode_message(types(), content.content(), nullptr, body, false)) {
    throw std::logic_error(err.text());
  }
  return text_of(body.flatten());
}

inline std::string number_text(std::uint64_t value, std::size_t bytes) {
  return {reinterpret_cast<const char*>(&value), bytes};
}

inline std::string handle_text(const NodeId& node, std::uint64_t id, const std::string& address) {
  return number_text(1, 1) + number_text(node.high(), 8) + number_text(node.low(), 8) +
         number_text(id, 8) + number_text(address.size(), 4) + address;
}

// A message of one HandleBox whose handle names any actor.
inline std::string handle_box(const NodeId& node, std::uint64_t id, const std::string& address) {
  const std::string payload = number_text(5, 4) + "label" + handle_text(node, id, address);
  return number_text(1, 4) + number_text(net::type_tag("test.handle_box"), 4) +
         number_text(payload.size(), 4) + payload;
}

/// What an attacker has found out. `echo_id` is an actor that many know; only a link or an exit
/// message would kill it.
struct Knowledge {
  std::string cluster;
  NodeId victim_id;
  NodeId honest_id;
  std::string honest_address;
  std::uint64_t echo_id = 0;
};

class Attacker {
 public:
  Attacker(std::uint64_t seed, Knowledge known) : random_(seed, 7), known_(std::move(known)) {
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
                upgrade_request(node_, known_.cluster, "heartbeat") + random_bytes(random_, 32),
                Fate::ends};
      case 6:
        return {"no hello", upgrade_request(node_, known_.cluster) + random_bytes(random_, 48),
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
    return upgrade_request(node_, known_.cluster) +
           hello_bytes(plausible_hello(node_, known_.cluster, session_));
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
    static const std::array<const char*, 6> sizes{
        "4294967296", "18446744073709551615", "99999999999999999999", "-1", "0x10", "2000000"};
    switch (random_.below(5)) {
      case 0:
        return {"http, mutated", mutated(valid[random_.below(valid.size())]), Fate::ends_eof};
      case 1:
        return {"http, long target",
                "GET /" + std::string(20'000 + random_.below(80'000), 'a') + " HTTP/1.1\r\n\r\n",
                Fate::ends};
      case 2:
        return {
            "http, long header",
            "GET / HTTP/1.1\r\n" + std::string(20'000 + random_.below(40'000), 'h') + ": 1\r\n\r\n",
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
    std::string text = upgrade_request(node_, known_.cluster);
    switch (random_.below(6)) {
      case 0: {  // one header is missing
        static const std::array<std::string, 5> names{
            "Upgrade: ", "Connection: ", "Troupe-Node: ", "Troupe-Cluster: ", "Troupe-Purpose: "};
        const auto start = text.find("\r\n" + names[random_.below(names.size())]);
        text.erase(start, text.find("\r\n", start + 2) - start);
        return {"upgrade, header missing", text, Fate::ends};
      }
      case 1:
        return {"upgrade, other cluster", upgrade_request(node_, "elsewhere"), Fate::ends};
      case 2:
        return {"upgrade, own id", upgrade_request(known_.victim_id, known_.cluster), Fate::ends};
      case 3:
        return {"upgrade, no id", upgrade_request(NodeId{}, known_.cluster), Fate::ends};
      case 4:
        return {"upgrade, purpose", upgrade_request(node_, known_.cluster, "nonsense"), Fate::ends};
      default:
        return {"upgrade, mutated", mutated(text), Fate::ends_eof};
    }
  }

  Attempt broken_hello() {
    const std::string start = upgrade_request(node_, known_.cluster);
    auto hello = plausible_hello(node_, known_.cluster, random_word(random_));
    switch (random_.below(9)) {
      case 0: {
        std::string text = start + hello_bytes(hello);
        flip_bits(text, start.size());
        return {"hello, damaged", text, Fate::ends};
      }
      case 1: {  // damaged, but with the right checksum: may even be plausible
        std::string payload = hello_bytes(hello).substr(sizeof(net::FrameHeader));
        return {"hello, mutated", start + frame({FrameType::hello, 0, 0}, mutated(payload)),
                Fate::ends_eof};
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
    switch (random_.below(15)) {
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
                text + frame({.lane = lane,
                              .sequence = sequence,
                              .ack = 1'000'000 + random_word(random_) / 2},
                             any_record()),
                Fate::ends};
      case 4:
        return {"frame, ack with payload", text + frame({FrameType::ack}, "payload!"), Fate::ends};
      case 5:
        return {"frame, second hello",
                text + hello_bytes(plausible_hello(node_, known_.cluster, session_)), Fate::ends};
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
        return {
            "fragment, total",
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
      case 13:
        return {
            "frame, unchecked",  // only an encrypted connection does without checksums
            text + frame({.lane = lane, .sequence = sequence, .flags = net::frame_flags::unchecked},
                         any_record()),
            Fate::ends};
      default: {  // whole, but the record in it has another size
        RecordHeader header;
        header.mid = async_mid;
        const auto whole = record(header, std::string(400, 'w'), 8);
        return {"fragment, record size", text + fragment(next, whole.size(), 0, whole), Fate::ends};
      }
    }
  }

  // Well-formed frames whose records are nonsense or impossible. They cost their sender nothing but
  // the answer; some are meant for an actor in use.
  Attempt tolerated_records() {
    std::string text = joined();
    RecordHeader claim;
    claim.kind = RecordKind::claim;
    claim.target = known_.echo_id;
    std::string payload = random_.below(2) == 0 ? record(claim, "") : std::string{};
    for (std::uint64_t i = 0, n = 1 + random_.below(12); i < n; ++i) {
      payload += random_.below(2) == 0 ? nonsense_message() : nonsense_record();
    }
    const auto lane = static_cast<std::uint8_t>(random_.below(2));
    if (random_.below(4) == 0) {  // as fragments
      RecordHeader header;
      header.target = known_.echo_id;
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
    header.target = random_.below(2) == 0 ? known_.echo_id : random_word(random_);
    std::string body = bodies_[random_.below(bodies_.size())];
    switch (random_.below(6)) {
      case 0:
        body = random_bytes(random_, random_.below(300));
        break;
      case 1: {  // a handle of anybody
        const NodeId nodes[] = {node_, known_.victim_id, known_.honest_id,
                                NodeId{random_word(random_), random_word(random_)}};
        const std::string addresses[] = {"", "127.0.0.1:1", "no address", known_.honest_address};
        // Each foreign node is dialled: not too many of them.
        const auto which = random_.below(8) == 0 ? 3 : random_.below(3);
        body = handle_box(nodes[which], random_word(random_) | nobody, addresses[random_.below(4)]);
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
        RecordKind::down,    RecordKind::link,          RecordKind::unlink,
        RecordKind::release, RecordKind::claim,         RecordKind::find,
        RecordKind::found,   RecordKind::undeliverable, static_cast<RecordKind>(200)};
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
  const Knowledge known_;
  NodeId node_;
  std::uint64_t session_ = 0;
  std::vector<std::string> bodies_;
};

}  // namespace troupe::test
