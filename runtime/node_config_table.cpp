// What can be set about a node.
#include <unistd.h>

#include <array>

#include "runtime/config_internal.hpp"
#include "runtime/node_config.hpp"

namespace troupe {

namespace {

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') {
    return "node";
  }
  const std::string text{name.data()};
  return text.substr(0, 64);
}

void add_node(std::vector<Setting>& table, bool head) {
  using T = SettingType;
  table.insert(
      table.end(),
      {{"node.listen", "--listen", "TROUPE_LISTEN", T::text,
        head ? "127.0.0.1:4700" : "127.0.0.1:0",
        "host:port for peers, HTTP and WebSocket; port 0 takes a free one"},
       {"node.advertise", "--advertise", "TROUPE_ADVERTISE", T::text, "",
        "host:port at which peers dial this node, if not the one it listens on"},
       {"node.name", "--name", "TROUPE_NAME", T::text, host_name(),
        "Label of the node, and of its certificate files"},
       {"node.data", "--data", "TROUPE_DATA", T::text, "",
        "Folder for what must survive the process, such as the head's view of the cluster"},
       {"node.resources", "--resources", "TROUPE_RESOURCES", T::map, "",
        "What the node has: cpu=4,memory=16G,gpu=1; cpu and memory are found out if not given"},
       {"node.labels", "--labels", "TROUPE_LABELS", T::map, "",
        "For placement and for people: zone=a,disk=ssd"},
       {"node.slots", "--slots", "TROUPE_SLOTS", T::integer, "0",
        "Compute slots: how many heavy actors run at a time; 0: as many as cpu"},
       {"node.log_level", "--log-level", "TROUPE_LOG_LEVEL", T::text, "info",
        "trace, debug, info, warning, error, critical or off"},
       {"node.port_file", "--port-file", "TROUPE_PORT_FILE", T::text, "",
        "Write the port to this file once the node listens"},
       {"node.insecure", "--insecure", "TROUPE_INSECURE", T::boolean, "false",
        "Listen off loopback without TLS: anybody who reaches the port gets in"},
       {"node.link_grace", "--link-grace", "TROUPE_LINK_GRACE", T::duration, "10s",
        "How long a broken link may take to come back without losing a message"}});
}

void add_cluster(std::vector<Setting>& table) {
  using T = SettingType;
  table.insert(
      table.end(),
      {{"cluster.name", "--cluster-name", "TROUPE_CLUSTER_NAME", T::text, "troupe",
        "Only nodes of the same cluster talk"},
       {"cluster.head", "--head", "TROUPE_HEAD", T::boolean, "false",
        "Host the broker: there is one head in a cluster, the others join"},
       {"cluster.join", "--join", "TROUPE_JOIN", T::list, "",
        "Where the cluster may be found: host:port, srv:_troupe._tcp.DOMAIN, file:PATH or lan"},
       {"cluster.discover", "--discover", "TROUPE_DISCOVER", T::text, "",
        "lan: find the cluster by multicast on the local network, and be found"},
       {"tls.folder", "--tls", "TROUPE_TLS", T::text, "",
        "Folder with ca.pem, NAME.pem and NAME.key as `troupe certs issue` writes them"},
       {"tls.ca", "--tls-ca", "TROUPE_TLS_CA", T::text, "",
        "The cluster's CA, instead of the one in the folder"},
       {"tls.cert", "--tls-cert", "TROUPE_TLS_CERT", T::text, "",
        "This node's certificate, instead of the one in the folder"},
       {"tls.key", "--tls-key", "TROUPE_TLS_KEY", T::text, "",
        "This node's private key, instead of the one in the folder"}});
}

void add_membership(std::vector<Setting>& table, MembershipProfile profile) {
  using T = SettingType;
  const bool loopback = profile == MembershipProfile::loopback;
  const MembershipTimes times = loopback ? MembershipTimes::loopback() : MembershipTimes{};
  const auto time = [](Milliseconds value) { return format_duration(value); };
  table.insert(
      table.end(),
      {{"membership.profile", "--profile", "TROUPE_PROFILE", T::text, "lan",
        "Defaults of the times below: lan, or loopback for tests on one machine"},
       {"membership.heartbeat_interval", "--heartbeat-interval", "TROUPE_HEARTBEAT_INTERVAL",
        T::duration, time(times.heartbeat_interval),
        "How often nodes that observe each other ping"},
       {"membership.suspect_phi", "--suspect-phi", "TROUPE_SUSPECT_PHI", T::number,
        config_internal::number_text(times.suspect_phi),
        "Suspicion from which a silent node is suspect; 8: one false alarm in 10^8 heartbeats"},
       {"membership.heartbeat_pause", "--heartbeat-pause", "TROUPE_HEARTBEAT_PAUSE", T::duration,
        time(times.heartbeat_pause), "Silence beyond the interval that is forgiven"},
       {"membership.down_after", "--down-after", "TROUPE_DOWN_AFTER", T::duration,
        time(times.down_after), "How long a node is suspect before it is declared down"},
       {"membership.lone_down_after", "--lone-down-after", "TROUPE_LONE_DOWN_AFTER", T::duration,
        time(times.lone_down_after), "The same where no other node can confirm the suspicion"},
       {"membership.lease", "--lease", "TROUPE_LEASE", T::duration, time(times.lease),
        "How long a node keeps exclusive things without hearing the broker"},
       {"membership.head_grace", "--head-grace", "TROUPE_HEAD_GRACE", T::duration,
        time(times.head_grace), "Time that nodes have to come back after a start of the head"},
       {"membership.sync_interval", "--sync-interval", "TROUPE_SYNC_INTERVAL", T::duration,
        time(times.sync_interval), "How often a node compares its view with the broker's"},
       {"membership.drain_deadline", "--drain-deadline", "TROUPE_DRAIN_DEADLINE", T::duration,
        time(times.drain_deadline), "How long work on a draining node may take"},
       {"membership.max_clock_skew", "--max-clock-skew", "TROUPE_MAX_CLOCK_SKEW", T::duration,
        time(times.max_clock_skew), "A node whose clock is further off is refused"},
       {"membership.batch", "", "TROUPE_BATCH", T::duration, time(times.batch),
        "Changes of the view within this time travel together"},
       {"membership.observers", "--observers", "TROUPE_OBSERVERS", T::integer,
        std::to_string(times.observers), "Nodes beside the head that observe each node"}});
}

}  // namespace

std::vector<Setting> node_setting_table(bool head, MembershipProfile profile) {
  std::vector<Setting> table;
  add_node(table, head);
  add_cluster(table);
  add_membership(table, profile);
  return table;
}

}  // namespace troupe
