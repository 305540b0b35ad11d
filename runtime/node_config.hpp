// Why: the one table of what can be set about a node, and the check that the settings make sense together,
// before anything of the node exists.
// Thread-safety: pure functions, apart from reading the configuration file and the host's name and size.
#pragma once

#include <vector>

#include "runtime/config.hpp"
#include "runtime/node_settings.hpp"

namespace troupe {

enum class MembershipProfile : std::uint8_t { lan, loopback };

/// All settings of `troupe node`. Some defaults follow from other settings: a head listens on a port that
/// others can know, and the profile gives the times.
std::vector<Setting> node_setting_table(bool head = false,
                                        MembershipProfile profile = MembershipProfile::lan);

struct NodeConfig {
  Config config;
  NodeSettings settings;
};

/// ec::invalid_argument: see `resolve_config`; or a value is out of range, or two exclude each other.
expected<NodeConfig> load_node_config(const ConfigSources& sources);

}  // namespace troupe
