#include "runtime/node_config.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <system_error>

#include "net/endpoint.hpp"
#include "runtime/config_internal.hpp"
#include "runtime/resources.hpp"

namespace troupe {

namespace {

using config_internal::in_quotes;

constexpr std::size_t max_name = 64;
constexpr std::size_t max_entries = 64;
constexpr std::size_t max_entry = 256;

bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte != 0x7F;
  });
}

/// Collects the first complaint, so that the checks read as a list.
class Checks {
 public:
  explicit Checks(const Config& config) : config_(config) {}

  void require(bool holds, std::string_view key, const std::string& otherwise) {
    if (!holds && !first_) {
      first_ = config_.complain(key, otherwise);
    }
  }

  void require_address(std::string_view key, const std::string& address, bool any_port) {
    const auto parsed = net::parse_address(address);
    require(parsed.has_value(), key, parsed ? "" : parsed.error().text());
    require(!parsed || any_port || parsed->port != 0, key,
            in_quotes(address) + " must have a port other than 0");
  }

  void require_duration(std::string_view key, Milliseconds least, Milliseconds most) {
    const auto value = config_.duration(key);
    require(value >= least && value <= most, key,
            format_duration(value) + " is not between " + format_duration(least) + " and " +
                format_duration(most));
  }

  const error& first() const noexcept { return first_; }

 private:
  const Config& config_;
  error first_;
};

void check_name(Checks& checks, std::string_view key, const std::string& name) {
  checks.require(!name.empty() && name.size() <= max_name, key,
                 "a name has 1 to 64 bytes, not " + std::to_string(name.size()));
  checks.require(printable(name), key, in_quotes(name) + " has control characters in it");
}

void check_map(Checks& checks, const Config& config, std::string_view key) {
  const auto& map = config.map(key);
  checks.require(map.size() <= max_entries, key, "more than 64 entries");
  for (const auto& [name, value] : map) {
    checks.require(!name.empty() && name.size() <= max_name && printable(name), key,
                   in_quotes(name) + " is not fit for a name: 1 to 64 bytes, none of them control");
    checks.require(value.size() <= max_entry && printable(value), key,
                   in_quotes(value) + " is longer than 256 bytes, or has control characters in it");
  }
}

void check_identity(Checks& checks, const Config& config) {
  checks.require_address("node.listen", config.text("node.listen"), true);
  if (const auto& advertise = config.text("node.advertise"); !advertise.empty()) {
    checks.require_address("node.advertise", advertise, false);
  }
  check_name(checks, "node.name", config.text("node.name"));
  check_name(checks, "cluster.name", config.text("cluster.name"));
  check_map(checks, config, "node.resources");
  check_map(checks, config, "node.labels");
  const auto slots = config.integer("node.slots");
  checks.require(slots >= 0 && slots <= 65536, "node.slots", "not between 0 and 65536");
  static const std::set<std::string> levels{"trace", "debug", "info",     "warn", "warning",
                                            "error", "err",   "critical", "off"};
  const auto& level = config.text("node.log_level");
  checks.require(
      levels.count(level) != 0, "node.log_level",
      in_quotes(level) + " is none of trace, debug, info, warning, error, critical and off");
  checks.require_duration("node.link_grace", Milliseconds{0}, std::chrono::hours{24});
}

/// A source of addresses, see net/discovery.hpp.
void check_source(Checks& checks, const std::string& source) {
  const auto after = [&](std::string_view prefix) {
    return source.compare(0, prefix.size(), prefix) == 0
               ? std::optional{source.substr(prefix.size())}
               : std::nullopt;
  };
  if (const auto name = after("srv:") ? after("srv:") : after("file:")) {
    checks.require(!name->empty() && printable(*name), "cluster.join",
                   in_quotes(source) + " names nothing after the colon");
  } else if (const auto group = after("lan:")) {
    checks.require_address("cluster.join", *group, false);
  } else if (source != "lan") {
    checks.require_address("cluster.join", source, false);
  }
}

void check_cluster(Checks& checks, const Config& config) {
  const auto& join = config.list("cluster.join");
  checks.require(join.size() <= max_entries, "cluster.join", "more than 64 addresses");
  for (const auto& source : join) {
    check_source(checks, source);
  }
  const auto& discover = config.text("cluster.discover");
  checks.require(discover.empty() || discover == "lan", "cluster.discover",
                 in_quotes(discover) + " is not \"lan\"");
}

void check_times(Checks& checks, const Config& config) {
  using std::chrono::hours;
  using Ms = Milliseconds;
  const auto key = [](const char* name) { return std::string{"membership."} + name; };
  const auto& profile = config.text("membership.profile");
  checks.require(profile == "lan" || profile == "loopback", "membership.profile",
                 in_quotes(profile) + " is neither \"lan\" nor \"loopback\"");
  checks.require_duration(key("heartbeat_interval"), Ms{10}, Ms{60'000});
  checks.require_duration(key("heartbeat_pause"), Ms{0}, hours{1});
  checks.require_duration(key("down_after"), Ms{1}, hours{24});
  checks.require_duration(key("lone_down_after"), Ms{1}, hours{24 * 7});
  checks.require_duration(key("lease"), Ms{1}, hours{24});
  checks.require_duration(key("head_grace"), Ms{0}, hours{24});
  checks.require_duration(key("sync_interval"), Ms{10}, hours{1});
  checks.require_duration(key("drain_deadline"), Ms{0}, hours{24 * 7});
  checks.require_duration(key("max_clock_skew"), Ms{1}, hours{24 * 365});
  checks.require_duration(key("batch"), Ms{0}, Ms{60'000});
  const double phi = config.number(key("suspect_phi"));
  checks.require(phi > 0 && phi <= 100, key("suspect_phi"), "not above 0 and at most 100");
  const auto observers = config.integer(key("observers"));
  checks.require(observers >= 0 && observers <= 16, key("observers"), "not between 0 and 16");
  const auto time = [&](const char* name) { return config.duration(key(name)); };
  checks.require(time("lease") >= 4 * time("heartbeat_interval"), key("lease"),
                 format_duration(time("lease")) + " is less than four heartbeat intervals (" +
                     format_duration(time("heartbeat_interval")) +
                     "): one lost heartbeat would end it");
  checks.require(time("lone_down_after") >= time("down_after"), key("lone_down_after"),
                 format_duration(time("lone_down_after")) + " is less than down_after (" +
                     format_duration(time("down_after")) + ")");
}

/// "16G" is 16 * 1024^3.
expected<double> parse_amount(const std::string& text) {
  double amount = 0;
  const auto got = std::from_chars(text.data(), text.data() + text.size(), amount);
  const std::string_view unit{got.ptr,
                              static_cast<std::size_t>(text.data() + text.size() - got.ptr)};
  constexpr std::string_view units = "KMGT";
  if (got.ec != std::errc{} || unit.size() > 1 ||
      (unit.size() == 1 && units.find(unit[0]) == std::string_view::npos)) {
    return fail(ec::invalid_argument, in_quotes(text) + " is not an amount such as 4, 0.5 or 16G");
  }
  if (!unit.empty()) {
    amount *= std::pow(1024.0, static_cast<double>(units.find(unit[0]) + 1));
  }
  if (!std::isfinite(amount) || amount < 0) {
    return fail(ec::invalid_argument,
                in_quotes(text) + " is not an amount: it must not be negative");
  }
  return amount;
}

expected<void> fill_resources(const Config& config, NodeSettings& settings) {
  for (const auto& [name, text] : config.map("node.resources")) {
    const auto amount = parse_amount(text);
    if (!amount) {
      return fail(config.complain("node.resources", name + ": " + amount.error().text()));
    }
    settings.resources[name] = *amount;
  }
  // What this process may use, not what the machine has: containers and Slurm hand out cores.
  settings.resources.merge(detect_resources());
  const auto slots = config.integer("node.slots");
  settings.slots = slots > 0 ? static_cast<std::uint32_t>(slots)
                             : static_cast<std::uint32_t>(
                                   std::clamp(std::floor(settings.resources["cpu"]), 1.0, 65536.0));
  return {};
}

NodeTls tls_of(const Config& config) {
  NodeTls tls;
  if (const auto& folder = config.text("tls.folder"); !folder.empty()) {
    tls = NodeTls::in_folder(folder, config.text("node.name"));
  }
  const auto replace = [&](std::string& file, const char* key) {
    if (!config.text(key).empty()) {
      file = config.text(key);
    }
  };
  replace(tls.ca_file, "tls.ca");
  replace(tls.cert_file, "tls.cert");
  replace(tls.key_file, "tls.key");
  return tls;
}

MembershipTimes times_of(const Config& config) {
  const auto time = [&](const char* name) {
    return config.duration(std::string{"membership."} + name);
  };
  MembershipTimes times;
  times.heartbeat_interval = time("heartbeat_interval");
  times.suspect_phi = config.number("membership.suspect_phi");
  times.heartbeat_pause = time("heartbeat_pause");
  times.down_after = time("down_after");
  times.lone_down_after = time("lone_down_after");
  times.lease = time("lease");
  times.head_grace = time("head_grace");
  times.sync_interval = time("sync_interval");
  times.drain_deadline = time("drain_deadline");
  times.max_clock_skew = time("max_clock_skew");
  times.batch = time("batch");
  times.observers = static_cast<std::uint32_t>(config.integer("membership.observers"));
  return times;
}

}  // namespace

expected<NodeConfig> load_node_config(const ConfigSources& sources) {
  // Twice, because some defaults follow from other settings.
  auto config = resolve_config(node_setting_table(), sources);
  if (!config) {
    return fail(config.error());
  }
  const bool head = config->boolean("cluster.head");
  const bool loopback = config->text("membership.profile") == "loopback";
  if (head || loopback) {
    config = resolve_config(
        node_setting_table(head, loopback ? MembershipProfile::loopback : MembershipProfile::lan),
        sources);
    if (!config) {
      return fail(config.error());
    }
  }
  Checks checks{*config};
  check_identity(checks, *config);
  check_cluster(checks, *config);
  check_times(checks, *config);
  if (checks.first()) {
    return fail(checks.first());
  }
  NodeSettings settings;
  settings.listen = config->text("node.listen");
  settings.advertise = config->text("node.advertise");
  settings.name = config->text("node.name");
  settings.cluster = config->text("cluster.name");
  settings.tls = tls_of(*config);
  settings.insecure = config->boolean("node.insecure");
  settings.head = head;
  settings.join = config->list("cluster.join");
  settings.discover = config->text("cluster.discover");
  settings.data = config->text("node.data");
  settings.labels = config->map("node.labels");
  settings.log_level = config->text("node.log_level");
  settings.port_file = config->text("node.port_file");
  settings.times = times_of(*config);
  settings.link_grace = config->duration("node.link_grace");
  if (auto filled = fill_resources(*config, settings); !filled) {
    return fail(filled.error());
  }
  return NodeConfig{std::move(*config), std::move(settings)};
}

}  // namespace troupe
