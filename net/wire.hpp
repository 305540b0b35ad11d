// Why: the byte layout of everything that travels on a link, in one place. A link is a sequence of
// frames; a data frame holds whole records (a message each), or one fragment of a record too large
// for a frame. Headers are fixed and little-endian, so that reading one is a bounds check and a copy;
// bodies are the codec's business.
// Thread-safety: pure functions and values.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "net/error.hpp"

namespace troupe::net {

static_assert(std::endian::native == std::endian::little, "the wire format is copied as it is");

/// Versions of the protocol that this build speaks.
inline constexpr std::uint32_t protocol_version_min = 1;
inline constexpr std::uint32_t protocol_version_max = 1;

/// Lanes by priority: a record in a lower lane never waits for more than one frame of a higher one.
enum class Lane : std::uint8_t { control = 0, user = 1 };
inline constexpr std::size_t lane_count = 2;

enum class FrameType : std::uint8_t {
  hello = 1,     ///< dialler to acceptor: handshake.proto Hello
  welcome = 2,   ///< acceptor to dialler: handshake.proto Hello of the acceptor
  reject = 3,    ///< handshake.proto Reject; the connection ends
  records = 4,   ///< whole records
  fragment = 5,  ///< FragmentHeader and a part of one record
  ack = 6,       ///< nothing but the acknowledgement and credits in the header
  goodbye = 7,   ///< handshake.proto Reject: the sender ends the link for good
};

namespace frame_flags {
/// The payload has no checksum, because an authenticated cipher protects the connection.
inline constexpr std::uint16_t unchecked = 1;
}  // namespace frame_flags

/// Starts each frame.
struct FrameHeader {
  std::uint32_t length = 0;  ///< bytes of payload that follow the header
  FrameType type = FrameType::ack;
  std::uint8_t lane = 0;
  std::uint16_t flags = 0;
  std::uint64_t sequence = 0;  ///< of records and fragment frames: 1, 2, …; else 0
  std::uint64_t ack = 0;       ///< highest sequence number received in order
  std::array<std::uint64_t, lane_count>
      credit{};  ///< bytes the receiver may have sent in all, per lane
  std::uint32_t payload_check = 0;
  std::uint32_t header_check = 0;
};
static_assert(sizeof(FrameHeader) == 48 && std::is_trivially_copyable_v<FrameHeader>);

/// Starts the payload of a fragment frame. The record it belongs to is header and body as in a
/// records frame, `total` bytes in all.
struct FragmentHeader {
  std::uint64_t total = 0;
  std::uint64_t offset = 0;
};
static_assert(sizeof(FragmentHeader) == 16);

enum class RecordKind : std::uint8_t {
  message = 1,  ///< body: codec message; mid tells request, response or asynchronous
  down = 2,     ///< source has ended; body: codec error
  link = 3,     ///< source (sender's actor) links to target
  unlink = 4,
  release = 5,  ///< the sender dropped its proxy of target; mid = how often it had received the id
  claim = 6,    ///< the sender learned of target through a third node and holds a proxy now
  find = 7,     ///< body: name; mid: number of the question
  found = 8,    ///< source: the actor, 0 when there is none; mid: number of the question
  undeliverable = 9,  ///< an asynchronous message could not be delivered; body: codec error
};

namespace record_flags {
inline constexpr std::uint8_t source_is_yours = 1;    ///< source is an actor of the receiving node
inline constexpr std::uint8_t source_is_foreign = 2;  ///< body starts with a third node's actor
}  // namespace record_flags

/// Starts each record; the body follows, padded with zeros to a multiple of 8 bytes.
struct RecordHeader {
  std::uint32_t size = 0;  ///< bytes of body without padding
  RecordKind kind = RecordKind::message;
  std::uint8_t flags = 0;
  std::uint16_t extra = 0;   ///< bytes of the foreign source in front of the body
  std::uint64_t source = 0;  ///< actor id on the sending node, 0 for none
  std::uint64_t target = 0;  ///< actor id on the receiving node
  std::uint64_t mid = 0;     ///< CAF message id, or as the kind says
};
static_assert(sizeof(RecordHeader) == 32 && std::is_trivially_copyable_v<RecordHeader>);

constexpr std::size_t padded(std::size_t size) noexcept { return (size + 7U) & ~std::size_t{7}; }

template <class T>
T read_pod(const std::byte* from) noexcept {
  T result;
  std::memcpy(&result, from, sizeof(T));
  return result;
}

template <class T>
void write_pod(std::byte* to, const T& value) noexcept {
  std::memcpy(to, &value, sizeof(T));
}

/// 32 bits over payload bytes (XXH3). Detects damage, not malice: that is TLS's task.
std::uint32_t checksum(std::span<const std::byte> bytes) noexcept;

/// The same over several spans in order, equal to the checksum of their concatenation.
class ChecksumStream {
 public:
  ChecksumStream();
  ~ChecksumStream();
  ChecksumStream(const ChecksumStream&) = delete;
  ChecksumStream& operator=(const ChecksumStream&) = delete;

  void reset() noexcept;
  void update(std::span<const std::byte> bytes) noexcept;
  std::uint32_t value() const noexcept;

 private:
  void* state_;
};

/// Fills in `header_check` and writes the header.
void write_frame_header(std::byte* to, FrameHeader header) noexcept;

/// Limits a receiver puts on frames.
struct FrameLimits {
  std::size_t max_payload = (std::size_t{256} << 10U) + sizeof(FragmentHeader);
  std::size_t max_message = std::size_t{1} << 30U;
  bool allow_unchecked = false;  ///< the stream is encrypted
};

/// Reads and checks a header. Errors: ec::malformed for a wrong check, type, lane or length.
expected<FrameHeader> read_frame_header(const std::byte* from, const FrameLimits& limits);

}  // namespace troupe::net
