// Values of settings as text: parsing, and what errors say about them.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

#include "runtime/config.hpp"
#include "runtime/config_internal.hpp"

namespace troupe {

namespace config_internal {

std::string in_quotes(std::string_view text) {
  constexpr std::size_t longest = 100;
  std::string out = "\"";
  for (const char c : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  out += text.size() > longest ? "…\"" : "\"";
  return out;
}

bool valid_utf8(std::string_view text) noexcept {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80                   ? 1
                               : lead >= 0xC2 && lead < 0xE0 ? 2
                               : lead >= 0xE0 && lead < 0xF0 ? 3
                               : lead >= 0xF0 && lead < 0xF5 ? 4
                                                             : 0;
    if (length == 0 || i + length > text.size()) {
      return false;
    }
    std::uint32_t point = length == 1 ? lead : lead & (0x7FU >> length);
    for (std::size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xC0U) != 0x80U) {
        return false;
      }
      point = (point << 6U) | (next & 0x3FU);
    }
    if ((length == 3 && point < 0x800) || (length == 4 && point < 0x10000) || point > 0x10FFFF ||
        (point >= 0xD800 && point < 0xE000)) {
      return false;
    }
    i += length;
  }
  return true;
}

std::string toml_string(std::string_view text) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      out += "\\u00";
      out += digits[byte >> 4U];
      out += digits[byte & 15U];
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string toml_key(std::string_view text) {
  const bool bare = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
  return bare ? std::string{text} : toml_string(text);
}

std::string number_text(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value);
  return {text, end.ptr};
}

}  // namespace config_internal

namespace {

using namespace config_internal;

template <class T>
expected<T> whole(std::string_view text, const char* what) {
  T value{};
  const auto got = std::from_chars(text.data(), text.data() + text.size(), value);
  if (got.ec != std::errc{} || got.ptr != text.data() + text.size()) {
    return fail(ec::invalid_argument, in_quotes(text) + " is not " + what);
  }
  return value;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') {
    text.remove_prefix(1);
  }
  while (!text.empty() && text.back() == ' ') {
    text.remove_suffix(1);
  }
  return text;
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (!trimmed(text).empty()) {
    const auto comma = std::min(text.find(','), text.size());
    parts.emplace_back(trimmed(text.substr(0, comma)));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

expected<std::vector<std::string>> parse_list(std::string_view text) {
  auto parts = split(text);
  if (std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part.empty(); })) {
    return fail(ec::invalid_argument, in_quotes(text) + " has an empty entry");
  }
  return parts;
}

expected<std::map<std::string, std::string>> parse_map(std::string_view text) {
  std::map<std::string, std::string> out;
  for (const auto& part : split(text)) {
    const auto equals = part.find('=');
    if (equals == std::string::npos || equals == 0) {
      return fail(ec::invalid_argument,
                  in_quotes(text) + " is not " + std::string{describe(SettingType::map)});
    }
    const std::string key{trimmed(std::string_view{part}.substr(0, equals))};
    if (key.empty() ||
        !out.emplace(key, trimmed(std::string_view{part}.substr(equals + 1))).second) {
      return fail(ec::invalid_argument, in_quotes(text) + " names " + in_quotes(key) + " twice");
    }
  }
  return out;
}

template <class T>
expected<SettingValue> widen(expected<T> value) {
  if (!value) {
    return fail(value.error());
  }
  // In place: GCC 12 takes the end of a temporary variant for a read of what was not written.
  return expected<SettingValue>{tl::in_place, std::in_place_type<T>, std::move(*value)};
}

expected<bool> parse_boolean(std::string_view text) {
  constexpr std::string_view yes[] = {"true", "1", "yes", "on"};
  constexpr std::string_view no[] = {"false", "0", "no", "off"};
  if (std::find(std::begin(yes), std::end(yes), text) != std::end(yes)) {
    return true;
  }
  if (std::find(std::begin(no), std::end(no), text) != std::end(no)) {
    return false;
  }
  return fail(ec::invalid_argument,
              in_quotes(text) + " is not " + std::string{describe(SettingType::boolean)});
}

}  // namespace

std::string_view describe(SettingType type) noexcept {
  switch (type) {
    case SettingType::text:
      return "a string";
    case SettingType::boolean:
      return "true or false";
    case SettingType::integer:
      return "a whole number";
    case SettingType::number:
      return "a number";
    case SettingType::duration:
      return "a duration such as \"500ms\", \"10s\" or \"2m\"";
    case SettingType::list:
      return "a list of strings";
    case SettingType::map:
      return "a map such as k=v,k2=v2 (in a file: a table)";
  }
  return "a value";
}

expected<std::chrono::milliseconds> parse_duration(std::string_view text) {
  using Ms = std::chrono::milliseconds;
  struct Unit {
    std::string_view name;
    double ms;
  };
  constexpr Unit units[] = {{"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}};
  constexpr double longest = 1000.0 * 3600 * 24 * 3650;
  const auto digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto unit = std::find_if(std::begin(units), std::end(units),
                                 [&](const Unit& u) { return u.name == text.substr(digits); });
  double amount = 0;
  const auto got = std::from_chars(text.data(), text.data() + digits, amount);
  if (unit == std::end(units) || digits == 0 || got.ec != std::errc{} ||
      got.ptr != text.data() + digits) {
    return fail(ec::invalid_argument,
                in_quotes(text) + " is not " + std::string{describe(SettingType::duration)});
  }
  const double ms = amount * unit->ms;
  if (ms > longest) {
    return fail(ec::invalid_argument, in_quotes(text) + " is longer than ten years");
  }
  if (std::abs(ms - std::round(ms)) > 1e-6 * std::max(1.0, ms * 1e-6)) {
    return fail(ec::invalid_argument, in_quotes(text) + " is finer than a millisecond");
  }
  return Ms{std::llround(ms)};
}

std::string format_duration(std::chrono::milliseconds duration) {
  const auto ms = duration.count();
  if (ms != 0 && ms % 3'600'000 == 0) {
    return std::to_string(ms / 3'600'000) + "h";
  }
  if (ms != 0 && ms % 60'000 == 0) {
    return std::to_string(ms / 60'000) + "m";
  }
  if (ms != 0 && ms % 1000 == 0) {
    return std::to_string(ms / 1000) + "s";
  }
  return std::to_string(ms) + "ms";
}

expected<SettingValue> parse_setting(SettingType type, std::string_view text) {
  if (!valid_utf8(text) || text.find('\0') != std::string_view::npos) {
    return fail(ec::invalid_argument, "the value is not valid UTF-8");
  }
  switch (type) {
    case SettingType::text:
      return SettingValue{std::string{text}};
    case SettingType::boolean:
      return widen(parse_boolean(text));
    case SettingType::integer:
      return widen(whole<std::int64_t>(text, "a whole number"));
    case SettingType::number: {
      const auto value = whole<double>(text, "a number");
      if (value && !std::isfinite(*value)) {
        return fail(ec::invalid_argument, in_quotes(text) + " is not a finite number");
      }
      return widen(value);
    }
    case SettingType::duration:
      return widen(parse_duration(text));
    case SettingType::list:
      return widen(parse_list(text));
    case SettingType::map:
      return widen(parse_map(text));
  }
  return fail(ec::invalid_argument, "unknown type of setting");
}

namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Names are short; what is not one of ours is only looked at as far as ours go.
  constexpr std::size_t longest = 64;
  a = a.substr(0, longest);
  b = b.substr(0, longest);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row[b.size()];
}

std::string_view last_part(std::string_view key) { return key.substr(key.rfind('.') + 1); }

}  // namespace

std::string nearest(std::string_view wrong, const std::vector<std::string>& known) {
  std::string best;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const auto& candidate : known) {
    // The right key in the wrong table is close, too.
    const std::size_t distance = std::min(
        edit_distance(wrong, candidate), edit_distance(last_part(wrong), last_part(candidate)) + 1);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace troupe
