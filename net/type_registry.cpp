#include "net/type_registry.hpp"

#include <cxxabi.h>

#include <chrono>
#include <cstdlib>
#include <memory>

#include <google/protobuf/util/json_util.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace troupe::net {

void register_builtin_types(TypeRegistry& registry);

TypeRegistry::TypeRegistry() : by_caf_number_(caf::type_nrs, nullptr) {
  register_builtin_types(*this);
}

expected<void> TypeRegistry::insert(TypeInfo info) {
  if (frozen_) {
    return fail(ec::closed,
                "type '" + info.name + "' comes too late: register types before the node starts");
  }
  if (info.name.empty() || info.name.size() > 200) {
    return fail(ec::invalid_argument, "a type name needs 1 to 200 characters: '" + info.name + "'");
  }
  info.tag = type_tag(info.name);
  const caf::rtti_pair rtti{info.caf_number, info.caf_number == 0 ? info.type : nullptr};
  const TypeInfo* same_type = find(rtti);
  const TypeInfo* same_name = find_name(info.name);
  if (same_type != nullptr && same_type == same_name) {
    return {};
  }
  if (same_name != nullptr) {
    return fail(ec::conflict, "the type name '" + info.name + "' belongs to " +
                                  demangle(*same_name->type) + "; " + demangle(*info.type) +
                                  " needs another");
  }
  if (same_type != nullptr) {
    return fail(ec::conflict, demangle(*info.type) + " is already registered as '" +
                                  same_type->name + "', not '" + info.name + "'");
  }
  if (const TypeInfo* other = find(info.tag)) {
    return fail(ec::conflict, "the type names '" + info.name + "' and '" + other->name +
                                  "' have the same hash; rename one");
  }
  const TypeInfo& stored = types_.emplace_back(std::move(info));
  by_tag_.emplace(stored.tag, &stored);
  by_address_.emplace(stored.type, &stored);
  by_type_.emplace(*stored.type, &stored);
  if (stored.caf_number != 0) {
    by_caf_number_[stored.caf_number] = &stored;
  }
  return {};
}

const TypeInfo* TypeRegistry::find(const std::type_info& type) const noexcept {
  if (const auto it = by_address_.find(&type); it != by_address_.end()) {
    return it->second;
  }
  const auto it = by_type_.find(type);
  return it != by_type_.end() ? it->second : nullptr;
}

const TypeInfo* TypeRegistry::find_name(std::string_view name) const noexcept {
  const TypeInfo* info = find(type_tag(name));
  return info != nullptr && info->name == name ? info : nullptr;
}

std::uint32_t type_tag(std::string_view name) noexcept {
  return XXH32(name.data(), name.size(), 0);
}

std::string demangle(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name{
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free};
  return status == 0 && name ? name.get() : type.name();
}

namespace detail {

expected<std::string> protobuf_to_json(const google::protobuf::Message& x) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(x, &json, options);
  if (!status.ok()) {
    return troupe::fail(ec::invalid_argument, "cannot write " + x.GetTypeName() +
                                                  " as JSON: " + std::string{status.message()});
  }
  return json;
}

error protobuf_from_json(std::string_view json, google::protobuf::Message& x) {
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece{json.data(), json.size()}, &x);
  if (!status.ok()) {
    return error{ec::malformed,
                 "no valid JSON for " + x.GetTypeName() + ": " + std::string{status.message()}};
  }
  return {};
}

}  // namespace detail

}  // namespace troupe::net
