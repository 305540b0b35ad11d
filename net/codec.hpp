// Why: one description of a struct, `inspect(f, x)`, must serve sending, receiving and CAF, and
// large arrays must reach the socket and the receiver's vector with a single copy at most.
// `Encoder` and `Decoder` are the two inspectors. Numbers travel as raw little-endian, so every bit
// pattern survives. docs/codec.md has the format and its promises.
// Thread-safety: an `Encoder`, `Decoder` or `EncodedBody` belongs to one thread at a time.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "net/bytes.hpp"
#include "net/error.hpp"

// Annotations inside an `inspect` written for CAF are recognised without including CAF.
namespace caf::meta {
struct annotation;
template <class F>
struct load_callback_t;
template <class F>
struct save_callback_t;
}  // namespace caf::meta

namespace troupe::net {

static_assert(std::endian::native == std::endian::little, "the wire format is the memory format");

class TypeRegistry;
class HandleCodec;

/// Arrays, strings and `Bytes` from this size on (bytes) are referenced, not copied.
inline constexpr std::size_t external_threshold = std::size_t{16} << 10U;

/// Structs and messages nested deeper than this are refused on both sides.
inline constexpr std::uint32_t max_nesting_depth = 64;

/// The bytes of an encoded value: those written here, and references to large arrays that stay
/// where they are. The encoded value must stay alive and unchanged until the externals have been
/// sent.
struct EncodedBody {
  /// Goes in before the inline byte `position`; several at one position in the order given.
  struct External {
    std::size_t position = 0;
    std::span<const std::byte> bytes;
  };

  std::vector<std::byte> inline_bytes;
  std::vector<External> externals;
  std::size_t external_size = 0;

  /// Bytes on the wire.
  std::size_t size() const noexcept { return inline_bytes.size() + external_size; }
  bool empty() const noexcept { return size() == 0; }

  /// Empties it and keeps the capacity.
  void clear() noexcept;

  /// Calls `fn(std::span<const std::byte>)` for each contiguous part in wire order.
  template <class F>
  void for_each_part(F&& fn) const {
    const std::span<const std::byte> all{inline_bytes};
    std::size_t at = 0;
    for (const External& external : externals) {
      if (external.position > at) {
        fn(all.subspan(at, external.position - at));
        at = external.position;
      }
      fn(external.bytes);
    }
    if (at < all.size()) {
      fn(all.subspan(at));
    }
  }

  /// One contiguous copy.
  std::vector<std::byte> flatten() const;
};

/// What nested actor handles and nested messages need; empty for plain data.
struct CodecContext {
  const TypeRegistry* registry = nullptr;
  HandleCodec* handles = nullptr;
};

/// How one type travels. Specialise it for types that cannot have an `inspect`:
///   static constexpr std::size_t min_size;                 // fewest bytes on the wire, > 0
///   static bool encode(Encoder&, const T&);                // false after `fail`
///   static bool decode(Decoder&, T&);
template <class T>
struct CodecTraits {};

class Encoder {
 public:
  using result_type = bool;
  static constexpr bool reads_state = true;
  static constexpr bool writes_state = false;
  static constexpr bool is_loading = false;

  /// Appends to `out`. Without `allow_external` everything is copied and `out` stands alone.
  explicit Encoder(EncodedBody& out, CodecContext context = {}, bool allow_external = true);
  ~Encoder() { trim(); }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  /// The fields of a struct; called by `inspect`. False once something failed.
  template <class... Ts>
  bool operator()(Ts&&... fields) {
    return (field(fields) && ...);
  }

  /// A value inside others: structs and Protobuf messages get a length in front.
  template <class T>
  bool value(const T& x);

  /// The outermost value, whose length the surroundings know.
  template <class T>
  bool root(const T& x);

  /// Ends the encoding: `out` is complete, or holds nothing of use when an error is returned.
  error finish();

  // Building blocks for CodecTraits.

  template <class T>
  void raw(const T& x) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memcpy(reserve(sizeof(T)), &x, sizeof(T));
    cursor_ += sizeof(T);
  }

  /// Copies `size` bytes.
  void bytes(const void* data, std::size_t size) {
    if (size != 0) {
      std::memcpy(reserve(size), data, size);
      cursor_ += size;
    }
  }

  /// Copies or references `size` bytes.
  void bulk(const void* data, std::size_t size) {
    if (size >= external_threshold && stable_ && allow_external_) {
      external(data, size);
    } else {
      bytes(data, size);
    }
  }

  /// Zero bytes up to a multiple of `alignment` (a power of two) from the start of the body.
  void align(std::size_t alignment) {
    const std::size_t padding = (0 - offset()) & (alignment - 1);
    if (padding != 0) {
      std::memset(reserve(padding), 0, padding);
      cursor_ += padding;
    }
  }

  /// Room for `size` bytes that the caller fills before anything else.
  std::byte* skip(std::size_t size) {
    std::byte* at = reserve(size);
    cursor_ += size;
    return at;
  }

  /// A number of elements or bytes; 32 bits on the wire.
  bool count(std::size_t n) {
    if (n > 0xFFFFFFFFU) {
      return fail(ec::limit_exceeded, "more than 4 294 967 295 elements or bytes in one value");
    }
    raw(static_cast<std::uint32_t>(n));
    return true;
  }

  /// Starts a part with its length in front; `end_frame` fills the length in.
  struct Frame {
    std::size_t length_at;
    std::size_t start;
  };
  Frame begin_frame() {
    const auto at = static_cast<std::size_t>(cursor_ - base_);
    raw(std::uint32_t{0});
    return {at, offset()};
  }
  bool end_frame(const Frame& frame) {
    const std::size_t length = offset() - frame.start;
    if (length > 0xFFFFFFFFU) {
      return fail(ec::limit_exceeded, "a part of more than 4 GB; send bulk data as objects");
    }
    const auto narrow = static_cast<std::uint32_t>(length);
    std::memcpy(base_ + frame.length_at, &narrow, sizeof(narrow));
    return true;
  }

  /// Runs `fn` one level deeper, with an error beyond `max_nesting_depth`.
  template <class F>
  bool nested(F&& fn) {
    if (++depth_ > max_nesting_depth) {
      return fail(ec::limit_exceeded, "a value nested more than 64 levels deep");
    }
    const bool ok = fn();
    --depth_;
    return ok;
  }

  /// Runs `fn` on values that do not outlive it: whatever it encodes is copied.
  template <class F>
  bool temporaries(F&& fn) {
    const bool outer = std::exchange(stable_, false);
    const bool ok = fn();
    stable_ = outer;
    return ok;
  }

  /// Records the first error; always false.
  bool fail(ec code, std::string text);

  /// Bytes of the body so far.
  std::size_t offset() const noexcept {
    return static_cast<std::size_t>(cursor_ - base_) + out_.external_size;
  }
  const error& failure() const noexcept { return error_; }
  const CodecContext& context() const noexcept { return context_; }

 private:
  std::byte* reserve(std::size_t size) {
    if (static_cast<std::size_t>(end_ - cursor_) < size) {
      grow(size);
    }
    return cursor_;
  }
  void grow(std::size_t size);
  void trim();
  void external(const void* data, std::size_t size);

  template <class T>
  bool field(T& x);
  template <class T>
  bool fields_of(const T& x);

  EncodedBody& out_;
  std::byte* base_ = nullptr;
  std::byte* cursor_ = nullptr;
  std::byte* end_ = nullptr;
  // The struct whose fields are being visited. A field outside of it is a local of `inspect` and
  // must be copied, since it is gone when the body is sent.
  std::uintptr_t struct_begin_ = 0;
  std::uintptr_t struct_end_ = 0;
  std::uint32_t depth_ = 0;
  bool allow_external_;
  bool stable_ = true;
  CodecContext context_;
  error error_;
};

struct DecodeLimits {
  std::uint32_t max_depth = max_nesting_depth;
  /// Memory that decoding may ask for, apart from the bytes themselves:
  /// `allowance + amplification * body size`. Stops bodies that unfold to many times their size.
  std::uint64_t allowance = std::uint64_t{16} << 20U;
  std::uint64_t amplification = 16;
};

class Decoder {
 public:
  using result_type = bool;
  static constexpr bool reads_state = false;
  static constexpr bool writes_state = true;
  static constexpr bool is_loading = true;

  /// Reads `body`. `Bytes` inside it become views when `owner` keeps the body alive, copies
  /// otherwise.
  explicit Decoder(std::span<const std::byte> body, std::shared_ptr<const void> owner = nullptr,
                   CodecContext context = {}, DecodeLimits limits = {})
      : begin_(body.data()),
        cursor_(body.data()),
        end_(body.data() + body.size()),
        budget_(limits.allowance + limits.amplification * body.size()),
        max_depth_(limits.max_depth),
        context_(context),
        owner_(std::move(owner)) {}
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  /// The fields of a struct; called by `inspect`. Fields that the sender did not have keep their
  /// value.
  template <class... Ts>
  bool operator()(Ts&&... fields) {
    return (field(fields) && ...);
  }

  template <class T>
  bool value(T& x);

  /// Reads `x` out of everything that is left. A struct skips what a newer sender appended;
  /// anything else left over is an error.
  template <class T>
  bool root(T& x);

  /// An error when something failed or bytes are left over.
  error finish();

  // Building blocks for CodecTraits.

  template <class T>
  bool raw(T& x) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (remaining() < sizeof(T)) {
      return truncated(sizeof(T));
    }
    std::memcpy(&x, cursor_, sizeof(T));
    cursor_ += sizeof(T);
    return true;
  }

  /// A view of the next `size` bytes in `out`.
  bool view(std::size_t size, std::span<const std::byte>& out) {
    if (remaining() < size) {
      return truncated(size);
    }
    out = {cursor_, size};
    cursor_ += size;
    return true;
  }

  bool align(std::size_t alignment);

  /// A number of elements of at least `min_size` bytes each, which must still be there.
  bool count(std::size_t min_size, std::size_t& out) {
    std::uint32_t n = 0;
    if (!raw(n)) {
      return false;
    }
    if (n > remaining() / min_size) {
      return overlong(n, min_size);
    }
    out = n;
    return true;
  }

  /// Asks for `elements * size` bytes of memory from the budget.
  bool charge(std::size_t elements, std::size_t size) {
    const std::uint64_t wanted = std::uint64_t{elements} * size;
    if (wanted > budget_) {
      return fail(ec::limit_exceeded,
                  "the body unfolds to far more memory than its size; see DecodeLimits");
    }
    budget_ -= wanted;
    return true;
  }

  /// Runs `fn` on the next `length` bytes as if they were everything, then steps behind them.
  template <class F>
  bool framed(std::size_t length, F&& fn) {
    if (remaining() < length) {
      return truncated(length);
    }
    if (++depth_ > max_depth_) {
      return fail(ec::malformed, "nested deeper than the limit");
    }
    const std::byte* outer = std::exchange(end_, cursor_ + length);
    if (!fn()) {
      return false;
    }
    cursor_ = std::exchange(end_, outer);
    --depth_;
    return true;
  }

  /// Bytes kept alive by the owner, or a copy.
  Bytes share(std::span<const std::byte> part) const {
    return owner_ ? Bytes{owner_, part} : Bytes::copy_of(part);
  }

  /// Records the first error, with the position; always false.
  bool fail(ec code, std::string text);

  std::size_t remaining() const noexcept { return static_cast<std::size_t>(end_ - cursor_); }
  std::size_t offset() const noexcept { return static_cast<std::size_t>(cursor_ - begin_); }
  const error& failure() const noexcept { return error_; }
  const CodecContext& context() const noexcept { return context_; }

 private:
  bool truncated(std::size_t wanted);
  bool overlong(std::size_t elements, std::size_t min_size);

  template <class T>
  bool field(T& x);

  const std::byte* begin_;
  const std::byte* cursor_;
  const std::byte* end_;
  std::uint64_t budget_;
  std::uint32_t depth_ = 0;
  std::uint32_t max_depth_;
  CodecContext context_;
  std::shared_ptr<const void> owner_;
  error error_;
};

}  // namespace troupe::net

#include "net/codec_types.hpp"

namespace troupe::net {

/// Appends `x` as an outermost value.
template <class T>
error encode_value(const T& x, EncodedBody& out, CodecContext context = {},
                   bool allow_external = true) {
  Encoder encoder{out, context, allow_external};
  encoder.root(x);
  return encoder.finish();
}

/// Reads a whole body as one `T`. Errors: malformed, limit_exceeded.
template <class T>
expected<T> decode_value(std::span<const std::byte> body,
                         std::shared_ptr<const void> owner = nullptr, CodecContext context = {},
                         DecodeLimits limits = {}) {
  T result{};
  Decoder decoder{body, std::move(owner), context, limits};
  decoder.root(result);
  if (error err = decoder.finish()) {
    return troupe::fail(std::move(err));
  }
  return result;
}

}  // namespace troupe::net
