// Arbitrary text as a configuration file: it is read or refused in one line, and what was read survives
// being printed and read again.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config.hpp"
#include "runtime/node_config.hpp"

namespace {

using namespace troupe;

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

void check_print(const std::vector<Setting>& table,
                 const std::map<std::string, FileValue>& values) {
  std::vector<Config::Entry> entries;
  for (const auto& setting : table) {
    if (const auto found = values.find(setting.key); found != values.end()) {
      entries.push_back({setting, found->second.value, found->second.origin});
    }
  }
  const auto again = parse_config_file(table, Config{entries}.print(), "again");
  require(again.has_value() && again->size() == values.size());
  for (const auto& [key, value] : values) {
    require(again->at(key).value == value.value);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<Setting> table = node_setting_table();
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  const auto values = parse_config_file(table, text, "file.toml");
  if (!values) {
    require(values.error() == ec::invalid_argument);
    require(values.error().text().find('\n') == std::string::npos);
    require(values.error().text().compare(0, 10, "file.toml:") == 0);
  } else {
    check_print(table, *values);
  }
  for (const auto type : {SettingType::integer, SettingType::number, SettingType::duration,
                          SettingType::list, SettingType::map, SettingType::boolean}) {
    const auto value = parse_setting(type, text);
    require(value || !value.error().text().empty());
  }
  return 0;
}
