#include "link/system.hpp"

#include <map>
#include <utility>

namespace troupe::bench {

namespace {

std::map<std::string, SystemFactory>& registry() {
  static std::map<std::string, SystemFactory> factories;
  return factories;
}

}  // namespace

Registration::Registration(std::string name, SystemFactory factory) {
  registry().emplace(std::move(name), std::move(factory));
}

std::unique_ptr<System> make_system(const std::string& name) {
  const auto found = registry().find(name);
  return found == registry().end() ? nullptr : found->second();
}

const std::vector<std::string>& known_systems() {
  static const std::vector<std::string> names{"caf_io", "asio_raw", "troupe_plain", "troupe_tls"};
  return names;
}

}  // namespace troupe::bench
