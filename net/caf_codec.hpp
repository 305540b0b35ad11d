// Why: actor handles, CAF errors and whole messages occur inside user structs; this is how they
// travel, and what lets CAF carry types that only this codec can serialise.
// Thread-safety: stateless, apart from `HandleCodec`: its members are called on any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include <caf/actor.hpp>
#include <caf/actor_addr.hpp>
#include <caf/actor_cast.hpp>
#include <caf/actor_control_block.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/error.hpp>
#include <caf/message.hpp>
#include <caf/typed_actor.hpp>
#include <caf/unit.hpp>

#include "net/codec.hpp"
#include "net/error.hpp"
#include "net/node_id.hpp"

namespace troupe::net {

/// An actor as it is named on the wire. Node 0 with id 0 is the null handle.
struct WireActor {
  NodeId node;
  std::uint64_t id = 0;
  /// Where the node listens ("host:port"), so that a third node can reach it. May be empty.
  std::string address;

  bool is_null() const noexcept { return !node && id == 0; }
  friend bool operator==(const WireActor&, const WireActor&) = default;
};

/// Translates between CAF handles and their names on the wire; the node implements it.
class HandleCodec {
 public:
  virtual ~HandleCodec() = default;

  /// The name under which other nodes can reach `handle` (never null here).
  virtual expected<WireActor> export_actor(const caf::strong_actor_ptr& handle) = 0;

  /// The local actor or a proxy for `actor` (never null here). An actor that has ended may give a
  /// null handle.
  virtual expected<caf::strong_actor_ptr> import_actor(const WireActor& actor) = 0;

  /// The name of an address whose actor may have ended, e.g. the source of a down_msg. By default
  /// one that has ended becomes the null handle.
  virtual expected<WireActor> export_address(const caf::actor_addr& address);
};

/// True for types that only this codec serialises; CAF's own serialisers skip them. Set it with
/// TROUPE_ALLOW_MESSAGE.
template <class T>
inline constexpr bool opaque_to_caf = std::is_same_v<T, Bytes> || std::is_same_v<T, NodeId> ||
                                      std::is_same_v<T, std::byte> || detail::ProtobufMessage<T>;
template <class T>
inline constexpr bool opaque_to_caf<std::optional<T>> = true;
template <class... Ts>
inline constexpr bool opaque_to_caf<std::variant<Ts...>> = true;
template <class T, class A>
inline constexpr bool opaque_to_caf<std::vector<T, A>> = opaque_to_caf<T>;
template <class T, std::size_t N>
inline constexpr bool opaque_to_caf<std::array<T, N>> = opaque_to_caf<T>;
template <class A, class B>
inline constexpr bool opaque_to_caf<std::pair<A, B>> = opaque_to_caf<A> || opaque_to_caf<B>;
template <class... Ts>
inline constexpr bool opaque_to_caf<std::tuple<Ts...>> = (opaque_to_caf<Ts> || ...);
template <class T, class C, class A>
inline constexpr bool opaque_to_caf<std::set<T, C, A>> = opaque_to_caf<T>;
template <class T, class H, class E, class A>
inline constexpr bool opaque_to_caf<std::unordered_set<T, H, E, A>> = opaque_to_caf<T>;
template <class K, class V, class C, class A>
inline constexpr bool opaque_to_caf<std::map<K, V, C, A>> = opaque_to_caf<K> || opaque_to_caf<V>;
template <class K, class V, class H, class E, class A>
inline constexpr bool opaque_to_caf<std::unordered_map<K, V, H, E, A>> =
    opaque_to_caf<K> || opaque_to_caf<V>;

namespace detail {

bool encode_handle(Encoder& e, const caf::strong_actor_ptr& handle);
bool encode_address(Encoder& e, const caf::actor_addr& address);
bool decode_handle(Decoder& d, caf::strong_actor_ptr& handle);

/// Strong handles of any kind.
template <class Handle>
struct HandleTraits {
  static constexpr std::size_t min_size = 1;
  static bool encode(Encoder& e, const Handle& x) {
    return encode_handle(e, caf::actor_cast<caf::strong_actor_ptr>(x));
  }
  static bool decode(Decoder& d, Handle& x) {
    caf::strong_actor_ptr handle;
    if (!decode_handle(d, handle)) {
      return false;
    }
    x = caf::actor_cast<Handle>(handle);
    return true;
  }
};

}  // namespace detail

template <>
struct CodecTraits<caf::strong_actor_ptr> {
  static constexpr std::size_t min_size = 1;
  static bool encode(Encoder& e, const caf::strong_actor_ptr& x) {
    return detail::encode_handle(e, x);
  }
  static bool decode(Decoder& d, caf::strong_actor_ptr& x) { return detail::decode_handle(d, x); }
};
template <>
struct CodecTraits<caf::actor> : detail::HandleTraits<caf::actor> {};
template <class... Sigs>
struct CodecTraits<caf::typed_actor<Sigs...>> : detail::HandleTraits<caf::typed_actor<Sigs...>> {};

template <>
struct CodecTraits<caf::actor_addr> {
  static constexpr std::size_t min_size = 1;
  static bool encode(Encoder& e, const caf::actor_addr& x) { return detail::encode_address(e, x); }
  static bool decode(Decoder& d, caf::actor_addr& x) {
    caf::strong_actor_ptr handle;
    if (!detail::decode_handle(d, handle)) {
      return false;
    }
    x = caf::actor_cast<caf::actor_addr>(handle);
    return true;
  }
};

template <>
struct CodecTraits<caf::weak_actor_ptr> {
  static constexpr std::size_t min_size = 1;
  static bool encode(Encoder& e, const caf::weak_actor_ptr& x) {
    return detail::encode_handle(e, x.lock());
  }
  static bool decode(Decoder& d, caf::weak_actor_ptr& x) {
    caf::strong_actor_ptr handle;
    if (!detail::decode_handle(d, handle)) {
      return false;
    }
    x = caf::actor_cast<caf::weak_actor_ptr>(handle);
    return true;
  }
};

template <>
struct CodecTraits<caf::unit_t> {
  static constexpr std::size_t min_size = 0;
  static bool encode(Encoder&, const caf::unit_t&) { return true; }
  static bool decode(Decoder&, caf::unit_t&) { return true; }
};

/// Code, category and the rendered context: the code and the category compare equal on the far
/// side, the context becomes one string there.
template <>
struct CodecTraits<caf::error> {
  static constexpr std::size_t min_size = 1;
  static bool encode(Encoder& e, const caf::error& x);
  static bool decode(Decoder& d, caf::error& x);
};

/// A message inside a message. Needs the registry in the context.
template <>
struct CodecTraits<caf::message> {
  static constexpr std::size_t min_size = 4;
  static bool encode(Encoder& e, const caf::message& x);
  static bool decode(Decoder& d, caf::message& x);
};

}  // namespace troupe::net

namespace caf {

template <class T>
requires troupe::net::opaque_to_caf<T>
struct allowed_unsafe_message_type<T> : std::true_type {
};

namespace detail {
// Keeps CAF from looking into the type: with an `inspect` whose result is deduced, looking is an
// error.
template <class T>
requires troupe::net::opaque_to_caf<T>
struct is_serializable<T> : std::true_type {
};
}  // namespace detail

}  // namespace caf

/// Lets CAF carry a struct with fields that CAF 0.17 cannot serialise by itself. Needed only when
/// the compiler stops inside CAF's data_processor; std::optional, std::variant, Bytes, NodeId and
/// Protobuf fields work without it. Write it at global scope, before the type is used in a message.
#define TROUPE_ALLOW_MESSAGE(...) \
  template <>                     \
  inline constexpr bool troupe::net::opaque_to_caf<__VA_ARGS__> = true
