#include "net/wire.hpp"

#include <cstddef>
#include <new>

#include "net/wire_checksum.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace troupe::net {

namespace {

const bool use_avx2 = detail::have_avx2();

}  // namespace

std::uint32_t checksum(std::span<const std::byte> bytes) noexcept {
  // The wider registers pay only beyond the sizes that XXH3 treats as short.
  if (use_avx2 && bytes.size() > 1024) {
    return static_cast<std::uint32_t>(detail::checksum_avx2(bytes.data(), bytes.size()));
  }
  return static_cast<std::uint32_t>(XXH3_64bits(bytes.data(), bytes.size()));
}

ChecksumStream::ChecksumStream() : state_(XXH3_createState()) {
  if (state_ == nullptr) {
    throw std::bad_alloc{};
  }
  reset();
}

ChecksumStream::~ChecksumStream() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void ChecksumStream::reset() noexcept { XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_)); }

void ChecksumStream::update(std::span<const std::byte> bytes) noexcept {
  if (use_avx2 && bytes.size() > 1024) {
    detail::checksum_update_avx2(state_, bytes.data(), bytes.size());
  } else if (!bytes.empty()) {
    XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
  }
}

std::uint32_t ChecksumStream::value() const noexcept {
  return static_cast<std::uint32_t>(XXH3_64bits_digest(static_cast<XXH3_state_t*>(state_)));
}

namespace {

std::uint32_t header_checksum(const FrameHeader& header) noexcept {
  return static_cast<std::uint32_t>(XXH3_64bits(&header, offsetof(FrameHeader, header_check)));
}

}  // namespace

void write_frame_header(std::byte* to, FrameHeader header) noexcept {
  header.header_check = header_checksum(header);
  write_pod(to, header);
}

expected<FrameHeader> read_frame_header(const std::byte* from, const FrameLimits& limits) {
  const auto header = read_pod<FrameHeader>(from);
  if (header.header_check != header_checksum(header)) {
    return fail(ec::malformed, "frame header is damaged (checksum does not match)");
  }
  const auto type = static_cast<std::uint8_t>(header.type);
  if (type < static_cast<std::uint8_t>(FrameType::hello) ||
      type > static_cast<std::uint8_t>(FrameType::goodbye)) {
    return fail(ec::malformed, "frame type " + std::to_string(type) + " is unknown");
  }
  if (header.lane >= lane_count) {
    return fail(ec::malformed, "frame names lane " + std::to_string(header.lane));
  }
  if ((header.flags & frame_flags::unchecked) != 0 && !limits.allow_unchecked) {
    return fail(ec::malformed, "frame without a checksum on a plaintext connection");
  }
  if (header.length > limits.max_payload) {
    return fail(ec::limit_exceeded, "frame of " + std::to_string(header.length) +
                                        " bytes exceeds the limit of " +
                                        std::to_string(limits.max_payload));
  }
  if (header.type == FrameType::fragment && header.length <= sizeof(FragmentHeader)) {
    return fail(ec::malformed, "fragment frame without data");
  }
  return header;
}

}  // namespace troupe::net
