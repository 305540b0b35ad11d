// The built-in types of every registry; a file of its own because it takes long to compile.
#include <chrono>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <caf/system_messages.hpp>
#include <caf/timespan.hpp>
#include <caf/timestamp.hpp>

#include "net/type_registry.hpp"

namespace troupe::net {

namespace {

template <class T>
void add(TypeRegistry& registry, const char* name) {
  if (auto added = registry.add<T>(name); !added) {
    // The names are fixed, so this is a mistake in this file.
    throw std::logic_error(added.error().text());
  }
}

template <class T>
void add_with_vector(TypeRegistry& registry, const std::string& name) {
  add<T>(registry, name.c_str());
  add<std::vector<T>>(registry, ("vector." + name).c_str());
}

void add_numbers(TypeRegistry& registry) {
  add_with_vector<bool>(registry, "bool");
  add_with_vector<std::int8_t>(registry, "i8");
  add_with_vector<std::int16_t>(registry, "i16");
  add_with_vector<std::int32_t>(registry, "i32");
  add_with_vector<std::int64_t>(registry, "i64");
  add_with_vector<std::uint8_t>(registry, "u8");
  add_with_vector<std::uint16_t>(registry, "u16");
  add_with_vector<std::uint32_t>(registry, "u32");
  add_with_vector<std::uint64_t>(registry, "u64");
  add_with_vector<float>(registry, "f32");
  add_with_vector<double>(registry, "f64");
  add<std::vector<char>>(registry, "vector.char");
  add<std::vector<std::byte>>(registry, "vector.byte");
}

void add_library_types(TypeRegistry& registry) {
  add_with_vector<std::string>(registry, "string");
  add<std::map<std::string, std::string>>(registry, "map.string.string");
  add_with_vector<Bytes>(registry, "bytes");
  add_with_vector<NodeId>(registry, "node_id");
  add<std::chrono::nanoseconds>(registry, "duration.ns");
  add<std::chrono::microseconds>(registry, "duration.us");
  add<std::chrono::milliseconds>(registry, "duration.ms");
  add<std::chrono::seconds>(registry, "duration.s");
  add<std::chrono::duration<double>>(registry, "duration.f64");
  add<caf::timestamp>(registry, "timestamp");
}

void add_caf_types(TypeRegistry& registry) {
  add<caf::atom_value>(registry, "atom");
  add<caf::unit_t>(registry, "unit");
  add<caf::message>(registry, "message");
  // Also caf::sec, caf::exit_reason and ec: CAF turns enums with a make_error into errors.
  add<caf::error>(registry, "error");
  add<caf::exit_msg>(registry, "exit_msg");
  add<caf::down_msg>(registry, "down_msg");
  add_with_vector<caf::actor>(registry, "actor");
  add_with_vector<caf::strong_actor_ptr>(registry, "strong_actor_ptr");
  add_with_vector<caf::actor_addr>(registry, "actor_addr");
}

}  // namespace

void register_builtin_types(TypeRegistry& registry) {
  add_numbers(registry);
  add_library_types(registry);
  add_caf_types(registry);
}

}  // namespace troupe::net
