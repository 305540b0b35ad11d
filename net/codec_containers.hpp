// Why: the containers of the codec: vectors, sets, maps, arrays, pairs, tuples, optionals and
// variants of values; apart only to keep each file readable. Include codec.hpp.
// Thread-safety: stateless.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "net/codec.hpp"

namespace troupe::net {

namespace detail {

template <class Container>
bool encode_elements(Encoder& e, const Container& xs) {
  if (!e.count(xs.size())) {
    return false;
  }
  for (const auto& x : xs) {
    if (!e.value(x)) {
      return false;
    }
  }
  return true;
}

/// Sets and maps: `Element` is what is read, `insert(Element&&)` says whether it was new.
template <class Element, std::size_t node_overhead, class Insert>
bool decode_elements(Decoder& d, Insert insert) {
  static_assert(min_wire_size<Element>() > 0, "elements without bytes cannot be counted safely");
  std::size_t n = 0;
  if (!d.count(min_wire_size<Element>(), n) || !d.charge(n, sizeof(Element) + node_overhead)) {
    return false;
  }
  for (std::size_t i = 0; i < n; ++i) {
    Element x{};
    if (!d.value(x)) {
      return false;
    }
    if (!insert(std::move(x))) {
      return d.fail(ec::malformed, "the same key twice in a set or map");
    }
  }
  return true;
}

template <class Set, std::size_t node_overhead>
struct SetTraits {
  static constexpr std::size_t min_size = 4;
  static bool encode(Encoder& e, const Set& x) { return encode_elements(e, x); }
  static bool decode(Decoder& d, Set& x) {
    x.clear();
    return decode_elements<typename Set::key_type, node_overhead>(
        d, [&x](typename Set::key_type&& key) { return x.insert(std::move(key)).second; });
  }
};

template <class Map, std::size_t node_overhead>
struct MapTraits {
  using Entry = std::pair<typename Map::key_type, typename Map::mapped_type>;
  static constexpr std::size_t min_size = 4;
  static bool encode(Encoder& e, const Map& x) { return encode_elements(e, x); }
  static bool decode(Decoder& d, Map& x) {
    x.clear();
    return decode_elements<Entry, node_overhead>(
        d, [&x](Entry&& entry) { return x.insert(std::move(entry)).second; });
  }
};

}  // namespace detail

template <class T, class A>
struct CodecTraits<std::vector<T, A>> {
  static constexpr std::size_t min_size = 4;
  static bool encode(Encoder& e, const std::vector<T, A>& x) {
    return detail::encode_elements(e, x);
  }
  static bool decode(Decoder& d, std::vector<T, A>& x) {
    static_assert(detail::min_wire_size<T>() > 0,
                  "elements without bytes cannot be counted safely");
    std::size_t n = 0;
    if (!d.count(detail::min_wire_size<T>(), n) || !d.charge(n, sizeof(T))) {
      return false;
    }
    x.clear();
    x.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
      x.emplace_back();
      if (!d.value(x.back())) {
        return false;
      }
    }
    return true;
  }
};

// The overheads are what the tree or bucket nodes of libstdc++ and malloc take beside the element.
template <class K, class C, class A>
struct CodecTraits<std::set<K, C, A>> : detail::SetTraits<std::set<K, C, A>, 48> {};
template <class K, class H, class E, class A>
struct CodecTraits<std::unordered_set<K, H, E, A>>
    : detail::SetTraits<std::unordered_set<K, H, E, A>, 40> {};
template <class K, class V, class C, class A>
struct CodecTraits<std::map<K, V, C, A>> : detail::MapTraits<std::map<K, V, C, A>, 48> {};
template <class K, class V, class H, class E, class A>
struct CodecTraits<std::unordered_map<K, V, H, E, A>>
    : detail::MapTraits<std::unordered_map<K, V, H, E, A>, 40> {};

/// A fixed number of elements, without a count.
template <class T, std::size_t N>
struct CodecTraits<std::array<T, N>> {
  static constexpr std::size_t min_size = N * detail::min_wire_size<T>();
  static bool encode(Encoder& e, const std::array<T, N>& x) {
    if constexpr (detail::RawElement<T>) {
      e.bulk(x.data(), N * sizeof(T));
    } else {
      for (const T& element : x) {
        if (!e.value(element)) {
          return false;
        }
      }
    }
    return true;
  }
  static bool decode(Decoder& d, std::array<T, N>& x) {
    if constexpr (detail::RawElement<T>) {
      std::span<const std::byte> part;
      if (!d.view(N * sizeof(T), part)) {
        return false;
      }
      if constexpr (N != 0) {
        std::memcpy(x.data(), part.data(), part.size());
      }
    } else {
      for (T& element : x) {
        if (!d.value(element)) {
          return false;
        }
      }
    }
    return true;
  }
};

template <class A, class B>
struct CodecTraits<std::pair<A, B>> {
  static constexpr std::size_t min_size =
      detail::min_wire_size<std::remove_const_t<A>>() + detail::min_wire_size<B>();
  static bool encode(Encoder& e, const std::pair<A, B>& x) {
    return e.value(x.first) && e.value(x.second);
  }
  static bool decode(Decoder& d, std::pair<A, B>& x) {
    return d.value(x.first) && d.value(x.second);
  }
};

template <class... Ts>
struct CodecTraits<std::tuple<Ts...>> {
  static constexpr std::size_t min_size = (std::size_t{0} + ... + detail::min_wire_size<Ts>());
  static bool encode(Encoder& e, const std::tuple<Ts...>& x) {
    return std::apply([&e](const Ts&... fields) { return (e.value(fields) && ...); }, x);
  }
  static bool decode(Decoder& d, std::tuple<Ts...>& x) {
    return std::apply([&d](Ts&... fields) { return (d.value(fields) && ...); }, x);
  }
};

template <class T>
struct CodecTraits<std::optional<T>> {
  static constexpr std::size_t min_size = 1;
  static bool encode(Encoder& e, const std::optional<T>& x) {
    return e.value(x.has_value()) && (!x.has_value() || e.value(*x));
  }
  static bool decode(Decoder& d, std::optional<T>& x) {
    bool present = false;
    if (!d.value(present)) {
      return false;
    }
    if (!present) {
      x.reset();
      return true;
    }
    return d.value(x.emplace());
  }
};

template <>
struct CodecTraits<std::monostate> {
  static constexpr std::size_t min_size = 0;
  static bool encode(Encoder&, std::monostate) { return true; }
  static bool decode(Decoder&, std::monostate&) { return true; }
};

/// The index of the alternative in one byte, then its value.
template <class... Ts>
struct CodecTraits<std::variant<Ts...>> {
  static_assert(sizeof...(Ts) < 256);
  static constexpr std::size_t min_size = 1;
  static bool encode(Encoder& e, const std::variant<Ts...>& x) {
    if (x.valueless_by_exception()) {
      return e.fail(ec::invalid_argument, "a variant without a value");
    }
    e.raw(static_cast<std::uint8_t>(x.index()));
    return std::visit([&e](const auto& alternative) { return e.value(alternative); }, x);
  }
  static bool decode(Decoder& d, std::variant<Ts...>& x) {
    std::uint8_t index = 0;
    if (!d.raw(index)) {
      return false;
    }
    if (index >= sizeof...(Ts)) {
      return d.fail(ec::malformed, "a variant with an unknown alternative");
    }
    return decode_alternative(d, x, index, std::index_sequence_for<Ts...>{});
  }

 private:
  template <std::size_t... Is>
  static bool decode_alternative(Decoder& d, std::variant<Ts...>& x, std::size_t index,
                                 std::index_sequence<Is...>) {
    bool ok = false;
    ((Is == index ? void(ok = d.value(x.template emplace<Is>())) : void()), ...);
    return ok;
  }
};

}  // namespace troupe::net
