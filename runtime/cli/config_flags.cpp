#include "runtime/cli/config_flags.hpp"

#include <string>

#include <CLI/CLI.hpp>

namespace troupe::cli {

namespace {

std::string type_name(SettingType type) {
  switch (type) {
    case SettingType::integer:
      return "INT";
    case SettingType::number:
      return "NUMBER";
    case SettingType::duration:
      return "TIME";
    case SettingType::list:
      return "A,B";
    case SettingType::map:
      return "K=V,K=V";
    default:
      return "TEXT";
  }
}

std::string help_of(const Setting& setting) {
  std::string text = setting.help;
  if (!setting.fallback.empty() && setting.type != SettingType::boolean) {
    text += " [" + setting.fallback + "]";
  }
  return setting.env.empty() ? text : text + " (" + setting.env + ")";
}

std::string group_of(const std::string& key) {
  const auto dot = key.rfind('.');
  return dot == std::string::npos ? "Options" : "[" + key.substr(0, dot) + "]";
}

}  // namespace

void add_config_flags(CLI::App& command, const std::vector<Setting>& settings,
                      const std::shared_ptr<ConfigSources>& sources) {
  command.add_option("--config", sources->file,
                     "TOML file with any of the settings below, by the names in brackets "
                     "(TROUPE_CONFIG)");
  for (const auto& setting : settings) {
    if (setting.flag.empty()) {
      continue;
    }
    CLI::Option* option = nullptr;
    if (setting.type == SettingType::boolean) {
      // --flag=false counts as -1: it overrules a file.
      option = command.add_flag_function(
          setting.flag,
          [sources, flag = setting.flag](std::int64_t count) {
            sources->flags[flag] = {count > 0 ? "true" : "false"};
          },
          help_of(setting));
    } else if (setting.type == SettingType::list || setting.type == SettingType::map) {
      option = command
                   .add_option_function<std::vector<std::string>>(
                       setting.flag,
                       [sources, flag = setting.flag](const std::vector<std::string>& words) {
                         sources->flags[flag] = words;
                       },
                       help_of(setting))
                   ->allow_extra_args(false);
      option->type_name(type_name(setting.type));
    } else {
      option = command.add_option_function<std::string>(
          setting.flag,
          [sources, flag = setting.flag](const std::string& word) {
            sources->flags[flag] = {word};
          },
          help_of(setting));
      option->type_name(type_name(setting.type));
    }
    option->group(group_of(setting.key));
  }
}

}  // namespace troupe::cli
