// Why: the framing of the raw Asio system: a fixed header and a body, read with as few copies as
// the job allows. Small frames are looked at where they were received; the rest of a large one is
// received straight into memory that is used again for the next.
// Thread-safety: none; belongs to one connection.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace troupe::bench {

enum class FrameKind : std::uint32_t { request, note, finish, counted };

struct FrameHeader {
  std::uint32_t length = 0;
  FrameKind kind = FrameKind::request;
  std::uint64_t sequence = 0;
};
static_assert(sizeof(FrameHeader) == 16);

struct Frame {
  FrameHeader header;
  std::span<const std::byte> body;
};

/// Appends header and body to `out`.
inline void append_frame(std::vector<std::byte>& out, FrameKind kind, std::uint64_t sequence,
                         std::span<const std::byte> body) {
  const FrameHeader header{static_cast<std::uint32_t>(body.size()), kind, sequence};
  const auto* raw = reinterpret_cast<const std::byte*>(&header);
  out.insert(out.end(), raw, raw + sizeof(header));
  out.insert(out.end(), body.begin(), body.end());
}

class FrameReader {
 public:
  static constexpr std::size_t buffer_size = std::size_t{512} << 10U;
  /// An incomplete body from this size on moves to memory of its own.
  static constexpr std::size_t large_body = std::size_t{64} << 10U;
  static constexpr std::size_t body_limit = std::size_t{128} << 20U;

  FrameReader() : buffer_(buffer_size) {}

  /// Where the next bytes belong.
  std::span<std::byte> window() {
    if (large_) {
      return std::span(body_).subspan(filled_, large_->length - filled_);
    }
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    return std::span(buffer_).subspan(end_);
  }

  void commit(std::size_t count) { (large_ ? filled_ : end_) += count; }

  /// The next complete frame; its body is valid until the next call of any member.
  /// Nothing when it is not there yet, or when `healthy()` has become false.
  std::optional<Frame> next() {
    if (large_) {
      if (filled_ < large_->length) {
        return std::nullopt;
      }
      const Frame frame{*large_, std::span<const std::byte>(body_).first(large_->length)};
      large_.reset();
      return frame;
    }
    if (end_ - begin_ < sizeof(FrameHeader)) {
      return std::nullopt;
    }
    FrameHeader header;
    std::memcpy(&header, buffer_.data() + begin_, sizeof(header));
    const auto available = std::span<const std::byte>(buffer_).subspan(
        begin_ + sizeof(header), end_ - begin_ - sizeof(header));
    if (available.size() >= header.length) {
      begin_ += sizeof(header) + header.length;
      return Frame{header, available.first(header.length)};
    }
    healthy_ = header.length <= body_limit;
    if (healthy_ && header.length >= large_body) {
      start_large(header, available);
    }
    return std::nullopt;
  }

  /// False when the peer sent an impossible length.
  bool healthy() const { return healthy_; }

 private:
  void start_large(const FrameHeader& header, std::span<const std::byte> available) {
    if (body_.size() < header.length) {
      body_.resize(header.length);
    }
    std::copy(available.begin(), available.end(), body_.begin());
    filled_ = available.size();
    large_ = header;
    begin_ = end_ = 0;
  }

  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::vector<std::byte> body_;
  std::size_t filled_ = 0;
  std::optional<FrameHeader> large_;
  bool healthy_ = true;
};

}  // namespace troupe::bench
