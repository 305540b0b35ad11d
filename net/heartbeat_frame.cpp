#include "net/heartbeat_frame.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace troupe::net {

namespace {

constexpr std::uint32_t magic = 0x42485254U;  // "TRHB"
constexpr std::uint8_t version = 2;
constexpr std::size_t hash_at = heartbeat_frame_size - 8;

void put(HeartbeatBytes& out, std::size_t at, std::uint64_t value, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    out[at + i] = static_cast<std::byte>((value >> (8 * i)) & 0xFFU);
  }
}

std::uint64_t get(std::span<const std::byte> in, std::size_t at, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) {
    value |= std::to_integer<std::uint64_t>(in[at + i]) << (8 * i);
  }
  return value;
}

}  // namespace

HeartbeatBytes encode_heartbeat(const HeartbeatFrame& frame) {
  HeartbeatBytes out{};
  put(out, 0, magic, 4);
  put(out, 4, version, 1);
  put(out, 5, static_cast<std::uint64_t>(frame.kind), 1);
  put(out, 8, frame.sequence, 8);
  put(out, 16, static_cast<std::uint64_t>(frame.time), 8);
  put(out, 24, frame.answer_sequence, 8);
  put(out, 32, static_cast<std::uint64_t>(frame.answer_time), 8);
  put(out, 40, static_cast<std::uint64_t>(frame.answer_held), 8);
  put(out, hash_at, XXH64(out.data(), hash_at, 0), 8);
  return out;
}

error check_heartbeat_start(std::span<const std::byte> bytes) {
  if (bytes.size() < heartbeat_start_size) {
    return {};
  }
  if (get(bytes, 0, 4) != magic) {
    return {ec::malformed, "heartbeat: the bytes are not a heartbeat frame"};
  }
  if (get(bytes, 4, 1) != version) {
    return {ec::handshake_refused, "heartbeat: the peer speaks version " +
                                       std::to_string(get(bytes, 4, 1)) + ", this node " +
                                       std::to_string(version)};
  }
  const std::uint64_t kind = get(bytes, 5, 1);
  if ((kind != 1 && kind != 2) || get(bytes, 6, 2) != 0) {
    return {ec::malformed, "heartbeat: unknown kind of frame"};
  }
  return {};
}

expected<HeartbeatFrame> decode_heartbeat(std::span<const std::byte, heartbeat_frame_size> bytes) {
  if (error problem = check_heartbeat_start(bytes)) {
    return fail(std::move(problem));
  }
  if (get(bytes, hash_at, 8) != XXH64(bytes.data(), hash_at, 0)) {
    return fail(ec::malformed, "heartbeat: the checksum of a frame is wrong");
  }
  HeartbeatFrame frame;
  frame.kind = static_cast<HeartbeatKind>(get(bytes, 5, 1));
  frame.sequence = get(bytes, 8, 8);
  frame.time = static_cast<std::int64_t>(get(bytes, 16, 8));
  frame.answer_sequence = get(bytes, 24, 8);
  frame.answer_time = static_cast<std::int64_t>(get(bytes, 32, 8));
  frame.answer_held = static_cast<std::int64_t>(get(bytes, 40, 8));
  return frame;
}

}  // namespace troupe::net
