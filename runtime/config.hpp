// Why: an operator sets the same things by flag, by environment, or by file, and must be able to ask which of
// them won. One table of settings drives all three, so that a name cannot exist in one place only and a
// misspelt one is found instead of ignored.
// Thread-safety: values; `resolve_config` reads files and nothing else of the process.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "net/error.hpp"

namespace troupe {

enum class SettingType : std::uint8_t {
  text,
  boolean,
  integer,
  number,
  duration,  ///< "500ms", "10s", "2m", "1h"
  list,      ///< TOML: array of strings; flag: may be repeated; everywhere else: "a,b"
  map,       ///< TOML: table; elsewhere "k=v,k2=v2"
};

/// One thing that can be set.
struct Setting {
  std::string key;   ///< "node.listen": table and key in the file; unique
  std::string flag;  ///< "--listen"; empty: none
  std::string env;   ///< "TROUPE_LISTEN"; empty: none
  SettingType type = SettingType::text;
  std::string fallback;  ///< the default, written as in the environment
  std::string help;
};

using SettingValue =
    std::variant<std::string, bool, std::int64_t, double, std::chrono::milliseconds,
                 std::vector<std::string>, std::map<std::string, std::string>>;

/// Where the layers come from, apart from the defaults.
struct ConfigSources {
  /// By flag ("--listen"): the words given, several for a repeated list or map.
  std::map<std::string, std::vector<std::string>> flags;
  /// All variables of the process; those that do not start with "TROUPE_", and empty ones, do not matter.
  std::vector<std::pair<std::string, std::string>> environment;
  /// TOML; empty: what TROUPE_CONFIG names, if anything.
  std::string file;
};

/// The variables of this process.
std::vector<std::pair<std::string, std::string>> process_environment();

/// The winner of every setting, and where it stood.
class Config {
 public:
  struct Entry {
    Setting setting;
    SettingValue value;
    std::string
        origin;  ///< "flag --listen", "environment TROUPE_LISTEN", "troupe.toml:3", "default"
  };

  explicit Config(std::vector<Entry> entries) : entries_(std::move(entries)) {}

  // A key that is not in the table, or another type, is a mistake in the program: std::logic_error.
  const std::string& text(std::string_view key) const;
  bool boolean(std::string_view key) const;
  std::int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;
  std::chrono::milliseconds duration(std::string_view key) const;
  const std::vector<std::string>& list(std::string_view key) const;
  const std::map<std::string, std::string>& map(std::string_view key) const;
  const std::string& origin(std::string_view key) const;

  /// An error about the value of `key`: "node.name (flag --name): " and `text`.
  error complain(std::string_view key, const std::string& text) const;

  const std::vector<Entry>& entries() const noexcept { return entries_; }

  /// As TOML, each line with its origin as a comment. As a file it gives the same configuration.
  std::string print() const;

 private:
  const Entry& at(std::string_view key) const;

  std::vector<Entry> entries_;
};

/// Flags over environment over file over defaults. ec::invalid_argument, with the place, for: a wrong type, a
/// key or TROUPE_ variable that nobody knows (with the nearest that exists), a file that cannot be read or is
/// no TOML.
expected<Config> resolve_config(const std::vector<Setting>& settings, const ConfigSources& sources);

/// The file layer alone: values of `settings` found in the TOML text `document`, by key. `file` is for the
/// places in errors and origins.
struct FileValue {
  SettingValue value;
  std::string origin;  ///< "troupe.toml:3"
};
expected<std::map<std::string, FileValue>> parse_config_file(const std::vector<Setting>& settings,
                                                             std::string_view document,
                                                             const std::string& file);

/// A value written as in the environment. The error names no place.
expected<SettingValue> parse_setting(SettingType type, std::string_view text);

expected<std::chrono::milliseconds> parse_duration(std::string_view text);
/// In the largest unit that needs no fraction: "1500ms", "10s", "2m".
std::string format_duration(std::chrono::milliseconds duration);

/// "a duration such as \"500ms\", …": what a value of this type looks like.
std::string_view describe(SettingType type) noexcept;

/// The one of `known` that somebody who wrote `wrong` may have meant; empty when `known` is.
std::string nearest(std::string_view wrong, const std::vector<std::string>& known);

}  // namespace troupe
