// Why: the one frame that heartbeat connections carry. Its size is fixed, so that no length from
// the network is ever believed.
// Thread-safety: pure functions.
//
// 56 bytes, little endian: magic "TRHB" (4), version (1), kind (1), zero (2), sequence (8),
// time (8, nanoseconds of the pinging node's clock), then the answer to the newest ping of the
// other side: its sequence (8; 0: no answer), its time sent back unchanged (8), nanoseconds for
// which the answer was held back (8); XXH64 of all before (8).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "net/error.hpp"

namespace troupe::net {

inline constexpr std::size_t heartbeat_frame_size = 56;
using HeartbeatBytes = std::array<std::byte, heartbeat_frame_size>;

/// A ping may carry an answer; a pong is an answer only.
enum class HeartbeatKind : std::uint8_t { ping = 1, pong = 2 };

struct HeartbeatFrame {
  HeartbeatKind kind = HeartbeatKind::ping;
  std::uint64_t sequence = 0;
  std::int64_t time = 0;
  std::uint64_t answer_sequence = 0;
  std::int64_t answer_time = 0;
  std::int64_t answer_held = 0;
};

HeartbeatBytes encode_heartbeat(const HeartbeatFrame& frame);

/// Whether the first bytes of a frame can be one, so that noise shorter than a frame is noticed too.
/// No error when there are fewer than `heartbeat_start_size`.
inline constexpr std::size_t heartbeat_start_size = 8;
error check_heartbeat_start(std::span<const std::byte> bytes);

/// `ec::malformed`, or `ec::handshake_refused` for another version.
expected<HeartbeatFrame> decode_heartbeat(std::span<const std::byte, heartbeat_frame_size> bytes);

}  // namespace troupe::net
