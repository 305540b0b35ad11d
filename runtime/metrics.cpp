#include "runtime/metrics.hpp"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "runtime/agent.hpp"
#include "runtime/compute_pool.hpp"
#include "runtime/node.hpp"
#include "supervision/broker.hpp"

namespace troupe {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<std::pair<std::string, std::string>>;

class Families {
 public:
  MetricFamily& family(const std::string& name, const std::string& help, MetricType type) {
    for (auto& known : all_) {
      if (known.name == name) {
        return known;
      }
    }
    all_.push_back({name, help, type, {}});
    return all_.back();
  }

  void gauge(const std::string& name, const std::string& help, double value, Labels labels = {}) {
    auto metric = labelled(std::move(labels));
    metric.gauge.value = value;
    family(name, help, MetricType::Gauge).metric.push_back(std::move(metric));
  }

  void counter(const std::string& name, const std::string& help, double value, Labels labels = {}) {
    auto metric = labelled(std::move(labels));
    metric.counter.value = value;
    family(name, help, MetricType::Counter).metric.push_back(std::move(metric));
  }

  std::string text() const { return prometheus::TextSerializer{}.Serialize(all_); }

 private:
  static ClientMetric labelled(Labels labels) {
    ClientMetric metric;
    for (auto& [name, value] : labels) {
      metric.label.push_back({std::move(name), std::move(value)});
    }
    return metric;
  }

  std::vector<MetricFamily> all_;
};

double seconds(net::Duration time) { return std::chrono::duration<double>(time).count(); }

void add_membership(Families& out, const Agent& agent) {
  const auto view = agent.view();
  const auto status = agent.status();
  std::array<std::size_t, 6> states{};
  for (const auto& [id, member] : view->live()) {
    ++states.at(static_cast<std::size_t>(member.state));
  }
  for (const auto state :
       {MemberState::joining, MemberState::up, MemberState::suspect, MemberState::draining}) {
    out.gauge("troupe_members", "Live members of the cluster by state, as this node sees it.",
              static_cast<double>(states.at(static_cast<std::size_t>(state))),
              {{"state", std::string{to_string(state)}}});
  }
  out.gauge("troupe_view_epoch", "Epoch of this node's view.", static_cast<double>(view->epoch()));
  out.gauge("troupe_broker_term", "Starts of the broker so far.",
            static_cast<double>(status.broker.term));
  out.gauge("troupe_joined", "1 while this node is a member and hears the broker.",
            status.phase == AgentPhase::member ? 1 : 0);
  out.gauge("troupe_lease", "1 while exclusive things may run on this node.", status.lease ? 1 : 0);
  out.counter("troupe_fenced_total", "Times this node was declared down and had to join anew.",
              static_cast<double>(status.fenced));
  out.counter("troupe_broker_reconnects_total", "Times the broker was lost and found again.",
              static_cast<double>(status.reconnects));
  out.gauge("troupe_hosted_paths", "Paths hosted on this node.",
            static_cast<double>(status.hosted));
  out.gauge("troupe_resolved_paths", "Paths in the cache of this node.",
            static_cast<double>(status.resolved));
}

void add_links(Families& out, Node& node) {
  auto& mesh = node.mesh();
  const char* bytes = "Bytes over the link to a peer.";
  const char* queued = "Bytes that wait for the peer, by lane.";
  for (const auto& peer : mesh.linked()) {
    const auto link = mesh.link_counters(peer);
    const Labels labels{{"peer", short_string(peer)}};
    const auto with = [&](const char* name, const char* value) {
      Labels more = labels;
      more.emplace_back(name, value);
      return more;
    };
    out.counter("troupe_link_bytes_total", bytes, static_cast<double>(link.bytes_sent),
                with("direction", "sent"));
    out.counter("troupe_link_bytes_total", bytes, static_cast<double>(link.bytes_received),
                with("direction", "received"));
    out.counter("troupe_link_messages_total", "Messages over the link to a peer.",
                static_cast<double>(link.records_sent), with("direction", "sent"));
    out.counter("troupe_link_messages_total", "Messages over the link to a peer.",
                static_cast<double>(link.records_received), with("direction", "received"));
    out.gauge("troupe_link_queue_bytes", queued, static_cast<double>(link.queued_bytes[0]),
              with("lane", "control"));
    out.gauge("troupe_link_queue_bytes", queued, static_cast<double>(link.queued_bytes[1]),
              with("lane", "user"));
    out.counter("troupe_link_refused_total", "Messages refused because the queue was full.",
                static_cast<double>(link.would_block), labels);
    out.counter("troupe_link_reconnects_total", "Connections of the link that were remade.",
                static_cast<double>(link.connections > 0 ? link.connections - 1 : 0), labels);
  }
}

void add_heartbeats(Families& out, Node& node) {
  auto* heartbeats = node.mesh().heartbeats();
  if (heartbeats == nullptr) {
    return;
  }
  for (const auto& peer : heartbeats->peers()) {
    const auto stats = heartbeats->stats(peer);
    if (!stats) {
      continue;
    }
    const Labels labels{{"peer", short_string(peer)}};
    out.gauge("troupe_heartbeat_rtt_seconds", "Mean round trip of the last heartbeats.",
              seconds(stats->rtt_mean), labels);
    out.gauge("troupe_heartbeat_phi", "Suspicion that the peer is dead; 8 is wrong once in 10^8.",
              stats->phi, labels);
    out.gauge("troupe_heartbeat_connected", "1 while heartbeats of the peer arrive.",
              stats->connected ? 1 : 0, labels);
  }
}

void add_endpoint(Families& out, Node& node) {
  const auto counters = node.transport().endpoint().counters();
  out.counter("troupe_connections_accepted_total", "Connections accepted on the node's port.",
              static_cast<double>(counters.accepted));
  out.counter("troupe_connections_turned_away_total",
              "Connections closed at once: too many were unauthenticated.",
              static_cast<double>(counters.turned_away));
  out.counter("troupe_http_requests_total", "HTTP requests answered.",
              static_cast<double>(counters.requests));
  out.counter("troupe_peers_refused_total", "Peers whose handshake was refused.",
              static_cast<double>(counters.peers_refused));
}

void add_compute(Families& out, const ComputePool& compute) {
  const auto counters = compute.counters();
  out.gauge("troupe_compute_running", "Tasks on compute slots now.",
            static_cast<double>(counters.running));
  out.gauge("troupe_compute_queued", "Tasks that wait for a slot.",
            static_cast<double>(counters.queued));
  out.counter("troupe_compute_done_total", "Tasks that ended.", static_cast<double>(counters.done));
  out.counter("troupe_compute_failed_total", "Tasks that threw.",
              static_cast<double>(counters.failed));
}

void add_broker(Families& out, const BrokerCounters& broker) {
  out.counter("troupe_broker_batches_total", "Batches of changes made durable.",
              static_cast<double>(broker.batches));
  out.counter("troupe_broker_member_changes_total", "Changes of members.",
              static_cast<double>(broker.member_changes));
  out.counter("troupe_broker_messages_total", "Messages to agents.",
              static_cast<double>(broker.messages_sent));
  out.counter("troupe_broker_snapshots_total", "Whole views sent.",
              static_cast<double>(broker.snapshots_sent));
  out.counter("troupe_broker_refused_total", "Nodes refused.",
              static_cast<double>(broker.refused_joins));
  out.gauge("troupe_broker_tombstones", "Incarnations kept out.",
            static_cast<double>(broker.tombstones));
}

}  // namespace

std::string metrics_text(Node& node, const Agent& agent, const ComputePool* compute,
                         const BrokerCounters* broker) {
  Families out;
  add_membership(out, agent);
  add_links(out, node);
  add_heartbeats(out, node);
  add_endpoint(out, node);
  if (compute != nullptr) {
    add_compute(out, *compute);
  }
  if (broker != nullptr) {
    add_broker(out, *broker);
  }
  return out.text();
}

}  // namespace troupe
