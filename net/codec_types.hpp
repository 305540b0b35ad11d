// Why: the standard types of the codec, and the choice between them; apart from codec.hpp only to
// keep each file readable. Include codec.hpp.
// Thread-safety: stateless.
#pragma once

#include <chrono>
#include <concepts>
#include <string>
#include <vector>

#include <google/protobuf/message_lite.h>

#include "net/codec.hpp"
#include "net/node_id.hpp"

namespace troupe::net {

namespace detail {

template <class T>
concept ProtobufMessage = std::derived_from<T, google::protobuf::MessageLite>;

// Braces accept a plain integer only for an enum with a fixed underlying type. Any other enum would
// have undefined behaviour for a number that is no enumerator.
template <class T>
concept FixedEnum = std::is_enum_v<T> && requires {
  T{0};
};

template <class T>
consteval bool is_raw() {
  if constexpr (std::is_enum_v<T>) {
    return is_raw<std::underlying_type_t<T>>();
  } else {
    return std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, long double>;
  }
}

/// Elements whose memory is their wire format.
template <class T>
concept RawElement = (!std::is_enum_v<T> || FixedEnum<T>)&&is_raw<T>();

template <class T>
concept HasTraits = requires {
  CodecTraits<T>::min_size;
};

template <class T>
concept Inspectable = std::is_class_v<T> && requires(Encoder& f, T& x) {
  inspect(f, x);
};

template <class T>
inline constexpr bool is_annotation = std::is_base_of_v<caf::meta::annotation, T>;
template <class T>
inline constexpr bool is_load_callback = false;
template <class F>
inline constexpr bool is_load_callback<caf::meta::load_callback_t<F>> = true;
template <class T>
inline constexpr bool is_save_callback = false;
template <class F>
inline constexpr bool is_save_callback<caf::meta::save_callback_t<F>> = true;

/// Fewest bytes of a `T` inside another value. What has an `inspect` has a length of 4 bytes.
template <class T>
consteval std::size_t min_wire_size() {
  if constexpr (HasTraits<T>) {
    return CodecTraits<T>::min_size;
  } else {
    return 4;
  }
}

/// Reads numbers from where they need not be aligned, so that a vector is filled without being
/// zeroed.
template <class T>
class UnalignedIterator {
 public:
  using iterator_category = std::random_access_iterator_tag;
  using value_type = T;
  using difference_type = std::ptrdiff_t;
  using pointer = const T*;
  using reference = T;

  explicit UnalignedIterator(const std::byte* at) : at_(at) {}
  T operator*() const {
    T x;
    std::memcpy(&x, at_, sizeof(T));
    return x;
  }
  UnalignedIterator& operator++() { return *this += 1; }
  UnalignedIterator operator++(int) {
    UnalignedIterator old = *this;
    ++*this;
    return old;
  }
  UnalignedIterator& operator--() { return *this += -1; }
  UnalignedIterator& operator+=(difference_type n) {
    at_ += n * static_cast<difference_type>(sizeof(T));
    return *this;
  }
  friend difference_type operator-(UnalignedIterator a, UnalignedIterator b) {
    return (a.at_ - b.at_) / static_cast<difference_type>(sizeof(T));
  }
  friend bool operator==(UnalignedIterator a, UnalignedIterator b) { return a.at_ == b.at_; }
  friend bool operator!=(UnalignedIterator a, UnalignedIterator b) { return a.at_ != b.at_; }

 private:
  const std::byte* at_;
};

}  // namespace detail

// Scalars

template <>
struct CodecTraits<bool> {
  static constexpr std::size_t min_size = 1;
  static bool encode(Encoder& e, bool x) {
    e.raw(static_cast<std::uint8_t>(x ? 1 : 0));
    return true;
  }
  static bool decode(Decoder& d, bool& x) {
    std::uint8_t byte = 0;
    if (!d.raw(byte)) {
      return false;
    }
    if (byte > 1) {
      return d.fail(ec::malformed, "a bool that is neither 0 nor 1");
    }
    x = byte == 1;
    return true;
  }
};

template <detail::RawElement T>
struct CodecTraits<T> {
  static constexpr std::size_t min_size = sizeof(T);
  static bool encode(Encoder& e, const T& x) {
    e.raw(x);
    return true;
  }
  static bool decode(Decoder& d, T& x) { return d.raw(x); }
};

template <>
struct CodecTraits<NodeId> {
  static constexpr std::size_t min_size = 16;
  static bool encode(Encoder& e, const NodeId& x) {
    e.raw(x.high());
    e.raw(x.low());
    return true;
  }
  static bool decode(Decoder& d, NodeId& x) {
    std::uint64_t high = 0;
    std::uint64_t low = 0;
    if (!d.raw(high) || !d.raw(low)) {
      return false;
    }
    x = NodeId{high, low};
    return true;
  }
};

/// As a 64-bit number of its own period.
template <class Rep, class Period>
struct CodecTraits<std::chrono::duration<Rep, Period>> {
  using Wire = std::conditional_t<std::is_floating_point_v<Rep>, double, std::int64_t>;
  static constexpr std::size_t min_size = 8;
  static bool encode(Encoder& e, const std::chrono::duration<Rep, Period>& x) {
    e.raw(static_cast<Wire>(x.count()));
    return true;
  }
  static bool decode(Decoder& d, std::chrono::duration<Rep, Period>& x) {
    Wire wire{};
    if (!d.raw(wire)) {
      return false;
    }
    if constexpr (!std::is_floating_point_v<Rep>) {
      if (!std::in_range<Rep>(wire)) {
        return d.fail(ec::malformed, "a duration beyond the range of its type");
      }
    }
    x = std::chrono::duration<Rep, Period>{static_cast<Rep>(wire)};
    return true;
  }
};

/// Only the system clock: a steady clock means nothing on another host.
template <class Duration>
struct CodecTraits<std::chrono::time_point<std::chrono::system_clock, Duration>> {
  using Point = std::chrono::time_point<std::chrono::system_clock, Duration>;
  static constexpr std::size_t min_size = 8;
  static bool encode(Encoder& e, const Point& x) { return e.value(x.time_since_epoch()); }
  static bool decode(Decoder& d, Point& x) {
    Duration since{};
    if (!d.value(since)) {
      return false;
    }
    x = Point{since};
    return true;
  }
};

// Bytes, strings, arrays of numbers

template <>
struct CodecTraits<std::string> {
  static constexpr std::size_t min_size = 4;
  static bool encode(Encoder& e, const std::string& x) {
    if (!e.count(x.size())) {
      return false;
    }
    e.bulk(x.data(), x.size());
    return true;
  }
  static bool decode(Decoder& d, std::string& x) {
    std::size_t n = 0;
    std::span<const std::byte> part;
    if (!d.count(1, n) || !d.view(n, part)) {
      return false;
    }
    x.assign(reinterpret_cast<const char*>(part.data()), n);
    return true;
  }
};

template <>
struct CodecTraits<Bytes> {
  static constexpr std::size_t min_size = 4;
  static bool encode(Encoder& e, const Bytes& x) {
    if (!e.count(x.size())) {
      return false;
    }
    if (!x.empty()) {
      e.align(8);
      e.bulk(x.data(), x.size());
    }
    return true;
  }
  static bool decode(Decoder& d, Bytes& x) {
    std::size_t n = 0;
    std::span<const std::byte> part;
    if (!d.count(1, n)) {
      return false;
    }
    if (n == 0) {
      x = Bytes{};
      return true;
    }
    if (!d.align(8) || !d.view(n, part)) {
      return false;
    }
    x = d.share(part);
    return true;
  }
};

template <detail::RawElement T, class A>
struct CodecTraits<std::vector<T, A>> {
  static constexpr std::size_t min_size = 4;
  static bool encode(Encoder& e, const std::vector<T, A>& x) {
    if (!e.count(x.size())) {
      return false;
    }
    if (!x.empty()) {
      e.align(sizeof(T));
      e.bulk(x.data(), x.size() * sizeof(T));
    }
    return true;
  }
  static bool decode(Decoder& d, std::vector<T, A>& x) {
    std::size_t n = 0;
    std::span<const std::byte> part;
    if (!d.count(sizeof(T), n)) {
      return false;
    }
    if (n == 0) {
      x.clear();
      return true;
    }
    if (!d.align(sizeof(T)) || !d.view(n * sizeof(T), part)) {
      return false;
    }
    if (reinterpret_cast<std::uintptr_t>(part.data()) % alignof(T) == 0) {
      const T* first = reinterpret_cast<const T*>(part.data());
      x.assign(first, first + n);
    } else {
      using Iterator = detail::UnalignedIterator<T>;
      x.assign(Iterator{part.data()}, Iterator{part.data() + part.size()});
    }
    return true;
  }
};

template <class A>
struct CodecTraits<std::vector<bool, A>> {
  static constexpr std::size_t min_size = 4;
  static bool encode(Encoder& e, const std::vector<bool, A>& x) {
    if (!e.count(x.size())) {
      return false;
    }
    for (const bool bit : x) {
      e.raw(static_cast<std::uint8_t>(bit ? 1 : 0));
    }
    return true;
  }
  static bool decode(Decoder& d, std::vector<bool, A>& x) {
    std::size_t n = 0;
    if (!d.count(1, n)) {
      return false;
    }
    x.clear();
    x.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
      bool bit = false;
      if (!d.value(bit)) {
        return false;
      }
      x.push_back(bit);
    }
    return true;
  }
};

}  // namespace troupe::net

#include "net/codec_containers.hpp"

namespace troupe::net {

// Protobuf

namespace detail {
/// Append or read a message as all there is.
bool encode_protobuf(Encoder& e, const google::protobuf::MessageLite& x);
bool decode_protobuf(Decoder& d, google::protobuf::MessageLite& x);
}  // namespace detail

template <detail::ProtobufMessage T>
struct CodecTraits<T> {
  static constexpr std::size_t min_size = 4;
  static bool encode(Encoder& e, const T& x) {
    const Encoder::Frame frame = e.begin_frame();
    return detail::encode_protobuf(e, x) && e.end_frame(frame);
  }
  static bool decode(Decoder& d, T& x) {
    std::size_t n = 0;
    return d.count(1, n) && d.framed(n, [&] { return detail::decode_protobuf(d, x); });
  }
};

// The choice

template <class T>
bool Encoder::fields_of(const T& x) {
  const auto at = reinterpret_cast<std::uintptr_t>(&x);
  const std::uintptr_t outer_begin = std::exchange(struct_begin_, at);
  const std::uintptr_t outer_end = std::exchange(struct_end_, at + sizeof(T));
  // `inspect` takes a mutable reference for the sake of reading; an Encoder changes nothing.
  const bool ok = static_cast<bool>(inspect(*this, const_cast<T&>(x)));
  struct_begin_ = outer_begin;
  struct_end_ = outer_end;
  return ok;
}

template <class T>
bool Encoder::field(T& x) {
  using Type = std::remove_const_t<T>;
  if constexpr (detail::is_save_callback<Type>) {
    return x.fun() ? fail(ec::invalid_argument, "a save callback refused") : true;
  } else if constexpr (detail::is_annotation<Type>) {
    return true;
  } else if constexpr (std::is_arithmetic_v<Type>) {
    return value(x);
  } else {
    const auto at = reinterpret_cast<std::uintptr_t>(&x);
    const bool outer = stable_;
    stable_ = outer && at >= struct_begin_ && at < struct_end_;
    const bool ok = value(x);
    stable_ = outer;
    return ok;
  }
}

template <class T>
bool Encoder::value(const T& x) {
  if constexpr (detail::HasTraits<T>) {
    return CodecTraits<T>::encode(*this, x);
  } else {
    static_assert(!std::is_enum_v<T> || detail::FixedEnum<T>,
                  "give the enum an underlying type: enum class E : std::uint8_t");
    static_assert(detail::Inspectable<T>,
                  "this type cannot travel: give it template <class Inspector> auto "
                  "inspect(Inspector& f, T& x) { return f(x.a, x.b); }, or specialise CodecTraits");
    const Frame frame = begin_frame();
    return nested([&] { return fields_of(x); }) && end_frame(frame);
  }
}

template <class T>
bool Encoder::root(const T& x) {
  if constexpr (detail::ProtobufMessage<T>) {
    return detail::encode_protobuf(*this, x);
  } else if constexpr (detail::HasTraits<T>) {
    return value(x);
  } else {
    static_assert(detail::Inspectable<T>, "this type cannot travel: see Encoder::value");
    return nested([&] { return fields_of(x); });
  }
}

template <class T>
bool Decoder::field(T& x) {
  if constexpr (detail::is_load_callback<std::remove_const_t<T>>) {
    return x.fun() ? fail(ec::malformed, "a load callback refused the value") : true;
  } else if constexpr (detail::is_annotation<std::remove_const_t<T>>) {
    return true;
  } else {
    return cursor_ == end_ || value(x);
  }
}

template <class T>
bool Decoder::value(T& x) {
  if constexpr (detail::HasTraits<T>) {
    return CodecTraits<T>::decode(*this, x);
  } else {
    static_assert(detail::Inspectable<T>, "this type cannot travel: see Encoder::value");
    std::size_t n = 0;
    return count(1, n) && framed(n, [&] { return static_cast<bool>(inspect(*this, x)); });
  }
}

template <class T>
bool Decoder::root(T& x) {
  if constexpr (detail::ProtobufMessage<T>) {
    return detail::decode_protobuf(*this, x);
  } else if constexpr (detail::HasTraits<T>) {
    return value(x) && (cursor_ == end_ || fail(ec::malformed, "bytes left over after the value"));
  } else {
    static_assert(detail::Inspectable<T>, "this type cannot travel: see Encoder::value");
    return framed(remaining(), [&] { return static_cast<bool>(inspect(*this, x)); });
  }
}

}  // namespace troupe::net
