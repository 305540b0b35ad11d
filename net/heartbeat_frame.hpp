// Why: the one frame that heartbeat connections carry. Its size is fixed, so that no length from
// the network is ever believed.
// Thread-safety: pure functions.
//
// 32 bytes, little endian: magic "TRHB" (4), version (1), kind (1), zero (2), sequence (8),
// time (8, nanoseconds of the pinging node's clock, sent back unchanged), XXH64 of the first 24
// (8).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "net/error.hpp"

namespace troupe::net {

inline constexpr std::size_t heartbeat_frame_size = 32;
using HeartbeatBytes = std::array<std::byte, heartbeat_frame_size>;

enum class HeartbeatKind : std::uint8_t { ping = 1, pong = 2 };

struct HeartbeatFrame {
  HeartbeatKind kind = HeartbeatKind::ping;
  std::uint64_t sequence = 0;
  std::int64_t time = 0;
};

HeartbeatBytes encode_heartbeat(const HeartbeatFrame& frame);
/// `ec::malformed`, or `ec::handshake_refused` for another version.
expected<HeartbeatFrame> decode_heartbeat(const HeartbeatBytes& bytes);

}  // namespace troupe::net
