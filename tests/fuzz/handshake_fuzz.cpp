// Arbitrary bytes as the first frames of a connection: parsing and judging them must end with a value
// or an error, the same ones however the bytes are cut into reads; what was accepted survives another
// round.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "net/frame_reader.hpp"
#include "net/handshake.hpp"
#include "net/philox.hpp"

namespace {

using namespace troupe;
using namespace troupe::net;

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

/// Keeps what the reader hands out. As a connection before the end of its handshake, it takes no
/// fragments.
class Frames final : public FrameHandler {
 public:
  struct Seen {
    FrameType type;
    std::vector<std::byte> payload;
    friend bool operator==(const Seen&, const Seen&) = default;
  };

  error on_frame(const FrameHeader& header, std::span<const std::byte> payload) override {
    require(payload.size() == header.length && payload.size() <= max_handshake_payload);
    seen.push_back({header.type, {payload.begin(), payload.end()}});
    return {};
  }
  expected<std::byte*> fragment_target(const FrameHeader&, const FragmentHeader&,
                                       std::size_t) override {
    return fail(ec::malformed, "fragment during the handshake");
  }
  error on_fragment(const FrameHeader&, const FragmentHeader&, std::size_t) override {
    std::abort();
  }

  std::vector<Seen> seen;
};

FrameLimits handshake_limits() {
  FrameLimits limits;
  limits.max_payload = max_handshake_payload;
  return limits;
}

/// Reads `bytes` in pieces of at most `largest`. The error that ended it, if any.
error read_in_pieces(std::span<const std::byte> bytes, std::uint64_t seed, std::size_t largest,
                     Frames& frames) {
  PhiloxStream random{seed};
  FrameReader reader{handshake_limits(), frames};
  while (!bytes.empty()) {
    const auto window = reader.window();
    require(!window.empty());
    const std::size_t count = std::min<std::size_t>(
        {window.size(), bytes.size(), 1 + static_cast<std::size_t>(random.below(largest))});
    std::memcpy(window.data(), bytes.data(), count);
    bytes = bytes.subspan(count);
    if (auto err = reader.consume(count)) {
      return err;
    }
  }
  return {};
}

Hello own_hello() {
  Hello hello;
  hello.version_min = 1;
  hello.version_max = 3;
  hello.cluster = "c";
  hello.node = NodeId{1, 2};
  hello.build = "own";
  return hello;
}

bool same(const Hello& a, const Hello& b) {
  return a.version_min == b.version_min && a.version_max == b.version_max &&
         a.cluster == b.cluster && a.node == b.node && a.name == b.name && a.build == b.build &&
         a.address == b.address && a.session == b.session && a.expects == b.expects &&
         a.connection == b.connection && a.received == b.received && a.credit == b.credit &&
         a.max_message == b.max_message && a.max_frame == b.max_frame;
}

/// Both sides of two connections dialled at once must keep the same one, whatever the numbers say.
void check_session_rules(const Hello& peer, std::uint64_t salt) {
  PhiloxStream random{salt};
  const NodeId self{1, 2};
  for (int round = 0; round < 8; ++round) {
    SessionState state;
    state.exists = random.below(4) != 0;
    state.own = random.below(2) == 0 ? peer.expects : random.below(3);
    state.peer = random.below(2) == 0 ? peer.session : random.below(2);
    state.connected = random.below(2) == 0;
    state.connection = random.below(2) == 0 ? peer.connection : random.below(4);
    state.initiator = random.below(2) == 0 ? self : peer.node;
    const NodeId initiator = random.below(2) == 0 ? self : peer.node;
    const auto verdict = judge_session(state, peer, initiator);
    if (!state.exists) {
      require(verdict == (peer.expects == 0 ? SessionVerdict::attach : SessionVerdict::stale));
    } else if (verdict == SessionVerdict::attach || verdict == SessionVerdict::duplicate) {
      require(peer.expects == 0 || peer.expects == state.own);
      require(state.peer == 0 || state.peer == peer.session);
      require(state.connected || verdict == SessionVerdict::attach);
    }
  }
}

void check_payload(std::span<const std::byte> payload, std::uint64_t salt) {
  const error reason = parse_reject(payload);
  require(static_cast<bool>(reason));
  require(reason.text().size() <= 1024);
  const auto hello = parse_hello(payload);
  if (!hello) {
    require(!hello.error().text().empty());
    return;
  }
  require(hello->node && hello->session != 0 && hello->connection != 0);
  if (const auto version = check_hello(own_hello(), *hello)) {
    require(*version >= 1 && *version <= 3 && *version >= hello->version_min &&
            *version <= hello->version_max && hello->cluster == "c");
  }
  check_session_rules(*hello, salt);
  const auto frame = hello_frame(FrameType::hello, *hello);
  if (frame.size() <= sizeof(FrameHeader) + max_handshake_payload) {
    Frames frames;
    require(!read_in_pieces(frame, salt, 100, frames));
    require(frames.seen.size() == 1);
    const auto again = parse_hello(frames.seen[0].payload);
    require(again.has_value() && same(*again, *hello));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // A block of exactly this size, so that AddressSanitizer sees a read beyond it.
  const std::vector<std::byte> block{reinterpret_cast<const std::byte*>(data),
                                     reinterpret_cast<const std::byte*>(data) + size};
  const std::uint64_t salt = size + (size == 0 ? 0U : std::uint64_t{data[size / 2]} << 8U);
  check_payload(block, salt);

  Frames whole;
  Frames pieces;
  const error once = read_in_pieces(block, salt, 1U << 20U, whole);
  const error again = read_in_pieces(block, salt + 1, 16, pieces);
  require(once.code() == again.code() && once.text() == again.text());
  require(whole.seen == pieces.seen);
  for (const auto& frame : whole.seen) {
    check_payload(frame.payload, salt);
  }
  return 0;
}
