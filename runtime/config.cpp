#include "runtime/config.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "runtime/config_internal.hpp"

namespace troupe {

namespace {

using namespace config_internal;

constexpr std::string_view env_prefix = "TROUPE_";
constexpr const char* env_config = "TROUPE_CONFIG";
constexpr std::size_t max_file = std::size_t{1} << 20U;

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

/// Kubernetes gives every container variables for every service: with one called "troupe" or "troupe-head"
/// these begin like ours.
bool from_kubernetes(const std::string& name, const std::string& value) {
  if (name.find("_SERVICE_HOST") != std::string::npos ||
      name.find("_SERVICE_PORT") != std::string::npos || starts_with(value, "tcp://") ||
      starts_with(value, "udp://")) {
    return true;
  }
  const auto port = name.find("_PORT_");
  if (port == std::string::npos) {
    return false;
  }
  const auto protocol = name.find_first_not_of("0123456789", port + 6);
  return protocol != std::string::npos && protocol > port + 6 &&
         (name.compare(protocol, 4, "_TCP") == 0 || name.compare(protocol, 4, "_UDP") == 0);
}

/// Variables that other parts of the program or its tests read.
bool known_elsewhere(const std::string& name) {
  static const char* const names[] = {"TROUPE_SEED", "TROUPE_SIM_SEEDS", env_config,
                                      "TROUPE_FAULT_CLOCK_OFFSET_MS", "TROUPE_CLUSTER"};
  return starts_with(name, "TROUPE_TEST_") ||
         std::any_of(std::begin(names), std::end(names), [&](const char* n) { return name == n; });
}

expected<std::string> read_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    return fail(ec::invalid_argument,
                "cannot read the configuration " + in_quotes(path) + ": " + why);
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return refuse("it is a folder");
  }
  errno = 0;
  std::ifstream in{path, std::ios::binary};
  if (!in) {
    return refuse(errno != 0 ? std::strerror(errno) : "it cannot be opened");
  }
  std::string text(max_file + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) {
    return refuse("reading failed");
  }
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > max_file) {
    return refuse("it is larger than 1 MiB");
  }
  return text;
}

using Environment = std::map<std::string, std::string>;

expected<Environment> read_environment(const std::vector<Setting>& settings,
                                       const ConfigSources& sources) {
  std::vector<std::string> known;
  for (const auto& setting : settings) {
    if (!setting.env.empty()) {
      known.push_back(setting.env);
    }
  }
  Environment out;
  for (const auto& [name, value] : sources.environment) {
    if (!starts_with(name, env_prefix) || value.empty()) {
      continue;
    }
    if (std::find(known.begin(), known.end(), name) != known.end() || name == env_config) {
      out.emplace(name, value);
    } else if (!known_elsewhere(name) && !from_kubernetes(name, value)) {
      return fail(ec::invalid_argument, "unknown environment variable " + in_quotes(name) +
                                            "; the nearest known one is " + nearest(name, known));
    }
  }
  return out;
}

/// The words of a flag; several of a list or map count as one.
std::string one_text(SettingType type, const std::vector<std::string>& words) {
  std::string all;
  for (const auto& word : words) {
    if (type == SettingType::list || type == SettingType::map) {
      all += (all.empty() ? "" : ",") + word;
    } else {
      all = word;
    }
  }
  return all;
}

std::string value_text(const SettingValue& value) {
  struct Printer {
    std::string operator()(const std::string& text) const { return toml_string(text); }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(std::int64_t number) const { return std::to_string(number); }
    std::string operator()(double number) const {
      std::string text = number_text(number);
      // A whole number in TOML is of another type; an exponent is fine.
      return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
    }
    std::string operator()(std::chrono::milliseconds duration) const {
      return toml_string(format_duration(duration));
    }
    std::string operator()(const std::vector<std::string>& list) const {
      std::string out;
      for (const auto& entry : list) {
        out += (out.empty() ? "" : ", ") + toml_string(entry);
      }
      return "[" + out + "]";
    }
    std::string operator()(const std::map<std::string, std::string>& map) const {
      std::string out;
      for (const auto& [key, entry] : map) {
        out += (out.empty() ? " " : ", ") + toml_key(key) + " = " + toml_string(entry);
      }
      return out.empty() ? "{}" : "{" + out + " }";
    }
  };
  return std::visit(Printer{}, value);
}

std::string comment_text(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    c = byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  return valid_utf8(text) ? text : "?";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> process_environment() {
  std::vector<std::pair<std::string, std::string>> out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text{*entry};
    if (const auto equals = text.find('='); equals != std::string_view::npos) {
      out.emplace_back(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return out;
}

const Config::Entry& Config::at(std::string_view key) const {
  for (const auto& entry : entries_) {
    if (entry.setting.key == key) {
      return entry;
    }
  }
  throw std::logic_error("no setting " + std::string{key});
}

const std::string& Config::text(std::string_view key) const {
  return std::get<std::string>(at(key).value);
}
bool Config::boolean(std::string_view key) const { return std::get<bool>(at(key).value); }
std::int64_t Config::integer(std::string_view key) const {
  return std::get<std::int64_t>(at(key).value);
}
double Config::number(std::string_view key) const { return std::get<double>(at(key).value); }
std::chrono::milliseconds Config::duration(std::string_view key) const {
  return std::get<std::chrono::milliseconds>(at(key).value);
}
const std::vector<std::string>& Config::list(std::string_view key) const {
  return std::get<std::vector<std::string>>(at(key).value);
}
const std::map<std::string, std::string>& Config::map(std::string_view key) const {
  return std::get<std::map<std::string, std::string>>(at(key).value);
}
const std::string& Config::origin(std::string_view key) const { return at(key).origin; }

error Config::complain(std::string_view key, const std::string& text) const {
  return {ec::invalid_argument, std::string{key} + " (" + at(key).origin + "): " + text};
}

std::string Config::print() const {
  // Settings of a table stand together whatever the order of the table in the program.
  std::vector<std::string> tables;
  std::map<std::string, std::vector<std::pair<std::string, std::string>>> lines;
  std::size_t widest = 0;
  for (const auto& entry : entries_) {
    const auto& key = entry.setting.key;
    const auto dot = key.rfind('.');
    const std::string table = dot == std::string::npos ? "" : key.substr(0, dot);
    if (lines.find(table) == lines.end()) {
      tables.push_back(table);
    }
    auto line =
        key.substr(dot == std::string::npos ? 0 : dot + 1) + " = " + value_text(entry.value);
    widest = std::max(widest, std::min<std::size_t>(line.size(), 40));
    lines[table].emplace_back(std::move(line), comment_text(entry.origin));
  }
  // Keys without a table must come before the first table.
  std::stable_partition(tables.begin(), tables.end(),
                        [](const auto& name) { return name.empty(); });
  std::string out;
  for (const auto& table : tables) {
    if (!table.empty()) {
      out += (out.empty() ? "[" : "\n[") + table + "]\n";
    }
    for (auto& [line, origin] : lines[table]) {
      line.resize(std::max(line.size(), widest), ' ');
      out += line + "  # " + origin + '\n';
    }
  }
  return out;
}

expected<Config> resolve_config(const std::vector<Setting>& settings,
                                const ConfigSources& sources) {
  const auto environment = read_environment(settings, sources);
  if (!environment) {
    return fail(environment.error());
  }
  std::string file = sources.file;
  if (const auto named = environment->find(env_config);
      file.empty() && named != environment->end()) {
    file = named->second;
  }
  std::map<std::string, FileValue> from_file;
  if (!file.empty()) {
    const auto document = read_file(file);
    if (!document) {
      return fail(document.error());
    }
    auto parsed = parse_config_file(settings, *document, file);
    if (!parsed) {
      return fail(parsed.error());
    }
    from_file = std::move(*parsed);
  }
  std::vector<Config::Entry> entries;
  for (const auto& setting : settings) {
    const auto flag = setting.flag.empty() ? sources.flags.end() : sources.flags.find(setting.flag);
    const auto variable = environment->find(setting.env);
    const auto in_file = from_file.find(setting.key);
    if (flag == sources.flags.end() && variable == environment->end() &&
        in_file != from_file.end()) {
      entries.push_back({setting, in_file->second.value, in_file->second.origin});
      continue;
    }
    std::string origin = "default";
    std::string text = setting.fallback;
    if (flag != sources.flags.end()) {
      origin = "flag " + setting.flag;
      text = one_text(setting.type, flag->second);
    } else if (variable != environment->end()) {
      origin = "environment " + setting.env;
      text = variable->second;
    }
    auto value = parse_setting(setting.type, text);
    if (!value) {
      return fail(ec::invalid_argument, setting.key + " (" + origin + "): " + value.error().text());
    }
    entries.push_back({setting, std::move(*value), std::move(origin)});
  }
  return Config{std::move(entries)};
}

}  // namespace troupe
