#include "runtime/cli/status_table.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <map>
#include <vector>

#include <nlohmann/json.hpp>

namespace troupe::cli {

namespace {

using Json = nlohmann::json;
using Row = std::array<std::string, 9>;

constexpr std::size_t longest_cell = 48;

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

std::string text_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string()
             ? one_line(found->get_ref<const std::string&>(), longest_cell)
             : "";
}

std::uint64_t number_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

bool flag_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

std::string amount_text(const std::string& name, double amount) {
  constexpr double kib = 1024;
  char text[64];
  if (name == "memory" && amount >= kib * kib) {
    const bool large = amount >= kib * kib * kib;
    std::snprintf(text, sizeof text, "%.4g%c", amount / (large ? kib * kib * kib : kib * kib),
                  large ? 'G' : 'M');
  } else {
    std::snprintf(text, sizeof text, "%.6g", amount);
  }
  return text;
}

std::string pairs_of(const Json& member, const char* key) {
  const auto found = member.find(key);
  if (found == member.end() || !found->is_object() || found->empty()) {
    return "-";
  }
  std::string out;
  for (const auto& [name, value] : found->items()) {
    out += (out.empty() ? "" : ",") + name + "=";
    if (value.is_string()) {
      out += value.get_ref<const std::string&>();
    } else if (value.is_number()) {
      out += amount_text(name, value.get<double>());
    } else {
      out += '?';
    }
    if (out.size() > 4 * longest_cell) {
      break;
    }
  }
  return one_line(out, longest_cell);
}

std::string state_of(const Json& member) {
  const std::string state = text_in(member, "state");
  return flag_in(member, "draining") && state != "draining" && state != "left" && state != "down"
             ? state + ",draining"
             : state;
}

Row row_of(const Json& member, std::int64_t now_ms) {
  const std::int64_t since = parse_iso_time(text_in(member, "since"));
  return {text_in(member, "name") + (flag_in(member, "head") ? " *" : ""),
          text_in(member, "id").substr(0, 8),
          text_in(member, "address"),
          state_of(member),
          std::to_string(number_in(member, "incarnation")),
          std::to_string(number_in(member, "pid")),
          pairs_of(member, "resources"),
          pairs_of(member, "labels"),
          since < 0 ? "?" : format_age(now_ms - since)};
}

std::string render(const std::vector<Row>& rows) {
  std::array<std::size_t, std::tuple_size_v<Row>> widths{};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], width_of(row[i]));
    }
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i] + std::string(widths[i] - width_of(row[i]) + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

std::string counts_of(const Json& nodes, const Json& ended) {
  static const std::vector<std::string> order{"joining", "up",       "suspect",
                                              "down",    "draining", "left"};
  std::map<std::string, std::size_t> counts;
  for (const auto* list : {&nodes, &ended}) {
    for (const auto& member : *list) {
      ++counts[text_in(member, "state")];
    }
  }
  std::string out;
  for (const auto& state : order) {
    if (counts[state] > 0) {
      out += (out.empty() ? "" : ", ") + std::to_string(counts[state]) + " " + state;
    }
  }
  return out.empty() ? "no nodes" : out;
}

}  // namespace

std::string one_line(std::string_view text, std::size_t longest) {
  std::string out;
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool continues = (byte & 0xC0U) == 0x80U;
    if (!continues && ++width > longest) {
      return out + "…";
    }
    // C1 controls (U+0080 to U+009F) act on terminals, too.
    const bool c1 =
        byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) {
      ++i;
    }
    out += byte < 0x20 || byte == 0x7F || c1 ? '?' : text[i];
  }
  return out;
}

std::string format_age(std::int64_t ms) {
  const std::int64_t s = std::max<std::int64_t>(ms, 0) / 1000;
  char text[64];
  const auto two = [&](std::int64_t a, char unit_a, std::int64_t b, char unit_b) {
    std::snprintf(text, sizeof text, "%lld%c%02lld%c", static_cast<long long>(a), unit_a,
                  static_cast<long long>(b), unit_b);
    return std::string{text};
  };
  if (s < 60) {
    return std::to_string(s) + "s";
  }
  if (s < 3600) {
    return two(s / 60, 'm', s % 60, 's');
  }
  if (s < 86'400) {
    return two(s / 3600, 'h', s / 60 % 60, 'm');
  }
  return two(s / 86'400, 'd', s / 3600 % 24, 'h');
}

std::int64_t parse_iso_time(std::string_view text) {
  std::tm parts{};
  int ms = 0;
  int end = 0;
  const std::string copy{text.substr(0, 64)};
  if (std::sscanf(copy.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &parts.tm_year, &parts.tm_mon,
                  &parts.tm_mday, &parts.tm_hour, &parts.tm_min, &parts.tm_sec, &ms, &end) != 7 ||
      static_cast<std::size_t>(end) != text.size()) {
    return -1;
  }
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  return static_cast<std::int64_t>(timegm(&parts)) * 1000 + ms;
}

expected<std::string> status_table(std::string_view cluster_json, std::int64_t now_ms,
                                   bool with_ended) {
  const auto json = Json::parse(cluster_json, nullptr, false);
  const auto list_in = [&](const char* key) -> const Json* {
    const auto found = json.find(key);
    const bool fine =
        found != json.end() && found->is_array() &&
        std::all_of(found->begin(), found->end(), [](const Json& e) { return e.is_object(); });
    return fine ? &*found : nullptr;
  };
  const Json* nodes = json.is_object() ? list_in("nodes") : nullptr;
  const Json* ended = json.is_object() ? list_in("ended") : nullptr;
  if (nodes == nullptr || ended == nullptr) {
    return fail(ec::malformed, "the answer does not describe a cluster");
  }
  std::string out =
      "cluster \"" + text_in(json, "cluster") + "\" (" + text_in(json, "cluster_id").substr(0, 8) +
      "), epoch " + std::to_string(number_in(json, "epoch")) + ", broker " +
      text_in(json, "broker").substr(0, 8) + " at " + text_in(json, "broker_address") + " (term " +
      std::to_string(number_in(json, "term")) + "): " + counts_of(*nodes, *ended) + "\n";
  std::vector<Row> rows{
      {"NAME", "ID", "ADDRESS", "STATE", "INC", "PID", "RESOURCES", "LABELS", "SINCE"}};
  for (const auto& member : *nodes) {
    rows.push_back(row_of(member, now_ms));
  }
  // People look for a name; ids are random.
  std::stable_sort(rows.begin() + 1, rows.end(),
                   [](const Row& a, const Row& b) { return a[0] < b[0]; });
  if (with_ended) {
    for (const auto& member : *ended) {
      rows.push_back(row_of(member, now_ms));
    }
  }
  return out + render(rows);
}

}  // namespace troupe::cli
