#include "runtime/cluster_json.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

#include <nlohmann/json.hpp>

namespace troupe {

namespace {

using Json = nlohmann::ordered_json;

// What a member says about itself comes from another process; however long it is, one answer with all
// members must stay readable.
constexpr std::size_t max_text = 512;
constexpr std::size_t max_entries = 64;

std::string short_text(std::string_view text) {
  if (text.size() <= max_text) {
    return std::string{text};
  }
  std::size_t end = max_text;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;
  }
  return std::string{text.substr(0, end)} + "…";
}

Json resources_of(const Member& member) {
  Json out = Json::object();
  for (const auto& [name, amount] : member.resources) {
    if (out.size() == max_entries) {
      break;
    }
    // Whole amounts as integers: 4 and not 4.0; JSON has no words for infinity.
    constexpr double exact = 9007199254740992.0;
    if (!std::isfinite(amount)) {
      out[short_text(name)] = nullptr;
    } else if (std::trunc(amount) == amount && std::abs(amount) <= exact) {
      out[short_text(name)] = static_cast<std::int64_t>(amount);
    } else {
      out[short_text(name)] = amount;
    }
  }
  return out;
}

Json labels_of(const Member& member) {
  Json out = Json::object();
  for (const auto& [name, value] : member.labels) {
    if (out.size() == max_entries) {
      break;
    }
    out[short_text(name)] = short_text(value);
  }
  return out;
}

Json member_of(const Member& member) {
  Json out;
  out["id"] = to_string(member.id);
  out["name"] = short_text(member.name);
  out["address"] = short_text(member.address);
  out["host"] = short_text(member.host);
  out["state"] = std::string{to_string(member.state)};
  out["draining"] = member.draining;
  out["head"] = member.head;
  out["incarnation"] = member.incarnation;
  out["pid"] = member.pid;
  out["build"] = short_text(member.build);
  out["resources"] = resources_of(member);
  out["labels"] = labels_of(member);
  out["reason"] = short_text(member.reason);
  out["since"] = iso_time(member.since_ms);
  out["epoch"] = member.epoch;
  return out;
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace

std::string iso_time(std::int64_t ms) {
  constexpr std::int64_t first = -62167219200000;  // year 0
  constexpr std::int64_t last = 253402300799999;   // year 9999
  ms = std::clamp(ms, first, last);
  std::int64_t seconds = ms / 1000;
  std::int64_t rest = ms % 1000;
  if (rest < 0) {
    rest += 1000;
    --seconds;
  }
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[48];
  std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", parts.tm_year + 1900,
                parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                static_cast<int>(rest));
  return text;
}

std::string cluster_json(const View& view) {
  const BrokerInfo& broker = view.broker();
  Json out;
  out["cluster"] = short_text(broker.cluster);
  out["cluster_id"] = to_string(broker.cluster_id);
  out["epoch"] = view.epoch();
  out["term"] = broker.term;
  out["broker"] = to_string(broker.broker);
  out["broker_address"] = short_text(broker.address);
  out["nodes"] = Json::array();
  for (const auto& [id, member] : view.live()) {
    out["nodes"].push_back(member_of(member));
  }
  out["ended"] = Json::array();
  for (const auto& member : view.ended()) {
    out["ended"].push_back(member_of(member));
  }
  return text_of(out);
}

std::string events_json(const std::vector<MemberEvent>& events) {
  Json out;
  out["events"] = Json::array();
  for (const auto& event : events) {
    Json entry;
    entry["seq"] = event.seq;
    entry["time"] = iso_time(event.time_ms);
    entry["epoch"] = event.epoch;
    entry["node"] = to_string(event.node);
    entry["incarnation"] = event.incarnation;
    entry["name"] = short_text(event.name);
    entry["address"] = short_text(event.address);
    entry["what"] = short_text(event.what);
    entry["reason"] = short_text(event.reason);
    out["events"].push_back(std::move(entry));
  }
  return text_of(out);
}

std::string accepted_json(const NodeId& node, std::string_view text) {
  Json out;
  out["ok"] = true;
  out["node"] = to_string(node);
  out["text"] = short_text(text);
  return text_of(out);
}

std::string error_json(const error& reason) {
  Json out;
  out["error"]["code"] = std::string{to_string(reason.code())};
  out["error"]["text"] = short_text(reason.text());
  return text_of(out);
}

unsigned http_status_of(ec code) noexcept {
  switch (code) {
    case ec::none:
      return 200;
    case ec::invalid_argument:
    case ec::malformed:
      return 400;
    case ec::unauthorized:
      return 403;
    case ec::not_found:
      return 404;
    case ec::conflict:
      return 409;
    case ec::limit_exceeded:
      return 413;
    case ec::would_block:
      return 429;
    case ec::node_unreachable:
    case ec::closed:
    case ec::refused:
    case ec::actor_down:
      return 503;
    case ec::timeout:
      return 504;
    default:
      return 500;
  }
}

}  // namespace troupe
