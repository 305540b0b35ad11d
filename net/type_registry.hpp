// Why: what arrives from another process is named, never trusted: a message element carries the
// hash of its type's stable name, and only types that were registered under a name can be built
// from bytes.
// Thread-safety: fill a registry on one thread, then `freeze` it; afterwards every const member may
// be called from any thread without a lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <typeindex>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include <caf/mailbox_element.hpp>
#include <caf/message.hpp>
#include <caf/rtti_pair.hpp>
#include <caf/type_nr.hpp>
#include <google/protobuf/message.h>

#include "net/caf_codec.hpp"
#include "net/codec.hpp"
#include "net/error.hpp"
#include "net/received.hpp"

namespace troupe::net {

/// A registered type. The functions work on the element's bytes; a failed one returns false or null
/// and the reason is in the encoder or decoder.
struct TypeInfo {
  std::string name;
  std::uint32_t tag = 0;
  const std::type_info* type = nullptr;
  /// CAF's number of a built-in type, 0 for others.
  std::uint16_t caf_number = 0;

  bool (*encode)(Encoder&, const void*) = nullptr;
  caf::type_erased_value_ptr (*decode_value)(Decoder&) = nullptr;
  bool (*decode_message)(Decoder&, caf::message&) = nullptr;
  caf::mailbox_element_ptr (*decode_element)(Decoder&, ReceivedParts&&) = nullptr;

  /// Protobuf types only: the value as JSON (field names as in the .proto), and a message of one
  /// element out of JSON (unknown fields are errors).
  std::function<expected<std::string>(const void*)> to_json;
  std::function<expected<caf::message>(std::string_view)> from_json;
};

namespace detail {

expected<std::string> protobuf_to_json(const google::protobuf::Message& x);
error protobuf_from_json(std::string_view json, google::protobuf::Message& x);

template <class T>
TypeInfo make_type_info(std::string name) {
  TypeInfo info;
  info.name = std::move(name);
  info.type = &typeid(T);
  info.caf_number = caf::make_rtti_pair<T>().first;
  info.encode = [](Encoder& e, const void* x) { return e.root(*static_cast<const T*>(x)); };
  info.decode_value = [](Decoder& d) -> caf::type_erased_value_ptr {
    auto* holder = new ReceivedValue<T>;
    caf::type_erased_value_ptr result{holder};
    return d.root(holder->value()) ? std::move(result) : nullptr;
  };
  info.decode_message = [](Decoder& d, caf::message& out) {
    auto data = caf::make_counted<ReceivedData<T>>();
    if (!d.root(data->value())) {
      return false;
    }
    out = caf::message{caf::detail::message_data::cow_ptr{std::move(data)}};
    return true;
  };
  info.decode_element = [](Decoder& d, ReceivedParts&& parts) -> caf::mailbox_element_ptr {
    auto* element = new ReceivedElement<T>(std::move(parts));
    caf::mailbox_element_ptr result{element};
    return d.root(element->value()) ? std::move(result) : nullptr;
  };
  if constexpr (std::derived_from<T, google::protobuf::Message>) {
    info.to_json = [](const void* x) { return protobuf_to_json(*static_cast<const T*>(x)); };
    info.from_json = [](std::string_view json) -> expected<caf::message> {
      T x;
      if (error err = protobuf_from_json(json, x)) {
        return troupe::fail(std::move(err));
      }
      return single_message(std::move(x));
    };
  }
  return info;
}

}  // namespace detail

/// The types a node can send and receive. Holds the built-in ones from the start: bool, integers,
/// floating point, strings, vectors of them, `Bytes`, `NodeId`, durations, and CAF's atoms, errors,
/// exit and down messages and handles.
class TypeRegistry {
 public:
  TypeRegistry();
  TypeRegistry(const TypeRegistry&) = delete;
  TypeRegistry& operator=(const TypeRegistry&) = delete;

  /// Registers `T` under a name that never changes ("myproject.rollout"). Doing the same again is
  /// fine.
  /// Errors: `conflict` for a name or type that is taken, or a name whose 32-bit hash is taken
  /// (choose another name); `closed` after `freeze`; `invalid_argument` for an empty or overlong
  /// name.
  template <class T>
  expected<void> add(std::string name) {
    static_assert(std::is_same_v<T, std::decay_t<T>>, "register the plain type");
    static_assert(std::is_default_constructible_v<T>, "receiving builds a T{} first");
    static_assert(std::is_copy_constructible_v<T>, "CAF copies messages that are shared");
    return insert(detail::make_type_info<T>(std::move(name)));
  }

  /// No more types: from here on reading needs no lock.
  void freeze() noexcept { frozen_ = true; }
  bool frozen() const noexcept { return frozen_; }

  /// Null when there is none.
  const TypeInfo* find(std::uint32_t tag) const noexcept {
    const auto it = by_tag_.find(tag);
    return it != by_tag_.end() ? it->second : nullptr;
  }
  const TypeInfo* find(const std::type_info& type) const noexcept;
  const TypeInfo* find_name(std::string_view name) const noexcept;

  /// By what a CAF message says of its element.
  const TypeInfo* find(const caf::rtti_pair& rtti) const noexcept {
    if (rtti.second != nullptr) {
      return find(*rtti.second);
    }
    return rtti.first < by_caf_number_.size() ? by_caf_number_[rtti.first] : nullptr;
  }

  std::size_t size() const noexcept { return types_.size(); }

  /// All of them in the order of registration.
  const std::deque<TypeInfo>& types() const noexcept { return types_; }

 private:
  expected<void> insert(TypeInfo info);

  std::deque<TypeInfo> types_;
  std::unordered_map<std::uint32_t, const TypeInfo*> by_tag_;
  // By address for speed; by name too, since a shared module can have its own copy of a type_info.
  std::unordered_map<const std::type_info*, const TypeInfo*> by_address_;
  std::unordered_map<std::type_index, const TypeInfo*> by_type_;
  std::vector<const TypeInfo*> by_caf_number_;
  bool frozen_ = false;
};

/// The 32-bit tag of a type name; the same on every host and in every version.
std::uint32_t type_tag(std::string_view name) noexcept;

/// A readable C++ name, for error texts.
std::string demangle(const std::type_info& type);

}  // namespace troupe::net
