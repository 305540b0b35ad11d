// Messages of the tests: plain structs with one inspect each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "net/type_registry.hpp"

namespace troupe::test {

struct Numbered {
  std::uint64_t number = 0;
  std::string text;
};

template <class Inspector>
auto inspect(Inspector& f, Numbered& x) {
  return f(x.number, x.text);
}

struct HandleBox {
  std::string label;
  caf::actor handle;
};

template <class Inspector>
auto inspect(Inspector& f, HandleBox& x) {
  return f(x.label, x.handle);
}

/// Registered on test nodes only when they are told to.
struct Secret {
  std::int32_t value = 0;
};

template <class Inspector>
auto inspect(Inspector& f, Secret& x) {
  return f(x.value);
}

inline expected<void> add_test_types(net::TypeRegistry& registry) {
  if (auto added = registry.add<Numbered>("test.numbered"); !added) {
    return added;
  }
  return registry.add<HandleBox>("test.handle_box");
}

}  // namespace troupe::test
