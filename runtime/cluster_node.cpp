#include "runtime/cluster_node.hpp"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <future>
#include <thread>

#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>

#include "net/caf_error.hpp"
#include "runtime/cluster_api.hpp"
#include "supervision/membership_messages.hpp"
#include "troupe_version.hpp"

namespace troupe {

namespace {

constexpr const char* lan_source = "lan";
constexpr auto other_head_timeout = std::chrono::milliseconds{700};
constexpr auto look_up_timeout = std::chrono::milliseconds{1500};
constexpr std::size_t compute_queue = 100'000;

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? std::string{name.data()} : "?";
}

/// The multicast group on which others look for the cluster; empty: none.
std::string lan_group(const NodeSettings& settings) {
  for (const auto& source : settings.join) {
    // With an address behind it; "lan:4700" is a host of that name.
    if (source == lan_source ||
        (source.rfind("lan:", 0) == 0 && source.find('.') != std::string::npos)) {
      return source;
    }
  }
  return settings.discover;
}

NodeOptions options_of(const ClusterNodeOptions& options) {
  const auto& settings = options.settings;
  NodeOptions result = node_options(settings);
  const auto& times = settings.times;
  result.watch_linked = false;
  result.heartbeat.interval = times.heartbeat_interval;
  result.heartbeat.suspect_phi = times.suspect_phi;
  result.heartbeat.phi.acceptable_pause = times.heartbeat_pause;
  result.heartbeat.phi.min_deviation =
      std::max<net::Duration>(times.heartbeat_interval / 10, std::chrono::milliseconds{20});
  // A connection is kept for longer than suspicion takes: a stopped process that wakes up goes on with it.
  result.heartbeat.silence = std::max<net::Duration>(
      4 * (times.heartbeat_interval + times.heartbeat_pause), std::chrono::seconds{1});
  result.wrap_transport = options.wrap_transport;
  result.types = [more = options.types](net::TypeRegistry& registry) -> expected<void> {
    if (auto added = add_membership_types(registry); !added) {
      return added;
    }
    return more ? more(registry) : expected<void>{};
  };
  return result;
}

/// Fault hook: a node whose clock is wrong by this much. See docs/membership.md.
std::int64_t clock_offset_ms() {
  const char* text = std::getenv("TROUPE_FAULT_CLOCK_OFFSET_MS");
  return text != nullptr ? std::strtoll(text, nullptr, 10) : 0;
}

std::int64_t wall_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void ClusterNode::End::set(error why) {
  std::function<void()> tell;
  {
    const std::lock_guard lock{mutex};
    if (reason) {
      return;
    }
    reason = std::move(why);
    tell = listener;
    changed.notify_all();
  }
  if (tell) {
    tell();
  }
}

expected<std::unique_ptr<ClusterNode>> ClusterNode::start(ClusterNodeOptions options) {
  std::unique_ptr<ClusterNode> self{new ClusterNode};
  self->settings_ = options.settings;
  auto& settings = self->settings_;
  std::shared_ptr<BrokerStore> store;
  if (settings.head) {
    // First of all: whoever does not get the folder must not even listen.
    if (settings.data.empty()) {
      spdlog::warn("head without --data: a restart begins a new cluster");
      store = make_memory_store();
    } else {
      auto opened = open_sqlite_store(settings.data);
      if (!opened) {
        return fail(opened.error());
      }
      store = std::move(*opened);
    }
  }
  auto node = Node::start(options_of(options));
  if (!node) {
    return fail(node.error());
  }
  self->node_ = std::move(*node);
  self->compute_ = std::make_shared<ComputePool>(std::max(1U, settings.slots), compute_queue);
  net::DiscoveryConfig discovery;
  discovery.cluster = settings.cluster;
  discovery.sources = settings.join;
  if (settings.discover == lan_source) {
    discovery.sources.emplace_back(lan_source);
  }
  self->discovery_ = net::make_discovery(discovery);
  if (auto started = self->start_broker_if_head(store); !started) {
    return fail(started.error());
  }
  self->start_agent(std::move(options.hooks));
  self->api_ = ClusterApi::open(*self->node_, self->agent_, self->compute_,
                                self->broker_ ? self->broker_->counters : nullptr);
  return self;
}

expected<void> ClusterNode::start_broker_if_head(const std::shared_ptr<BrokerStore>& store) {
  if (!settings_.head) {
    return {};
  }
  if (auto alone = check_no_other_head(); !alone) {
    return alone;
  }
  BrokerOptions options;
  options.core.cluster = settings_.cluster;
  options.core.self = node_->id();
  options.core.address = node_->address();
  options.core.new_cluster_id = NodeId::random();
  options.core.times = settings_.times;
  options.store = store;
  options.on_end = [end = end_](const error& reason) { end->set(reason); };
  auto broker = start_broker(node_->system(), std::move(options));
  if (!broker) {
    return fail(broker.error());
  }
  broker_ = std::move(*broker);
  node_->mesh().publish(broker_actor_name, broker_->actor, net::Lane::control);
  if (const auto group = lan_group(settings_); !group.empty()) {
    responder_ = std::make_unique<net::LanResponder>();
    if (auto started = responder_->start(settings_.cluster, node_->address(), group); !started) {
      spdlog::warn("this head cannot be discovered by multicast: {}", started.error().text());
      responder_ = nullptr;
    }
  }
  return {};
}

/// One bootstrap authority: a head that can see a member of a living cluster of the same name does not found another.
expected<void> ClusterNode::check_no_other_head() {
  if (settings_.join.empty() && settings_.discover.empty()) {
    return {};
  }
  // Shared: the answer may come after this has given up waiting.
  const auto found = std::make_shared<std::promise<std::vector<std::string>>>();
  discovery_->find([found](std::vector<std::string> addresses, const std::vector<std::string>&) {
    found->set_value(std::move(addresses));
  });
  auto addresses = found->get_future();
  if (addresses.wait_for(look_up_timeout) != std::future_status::ready) {
    spdlog::warn(
        "the addresses of the join list were not found out in time; no other head is known");
    return {};
  }
  caf::scoped_actor self{node_->system()};
  for (const auto& address : addresses.get()) {
    if (address == node_->address()) {
      continue;
    }
    const auto peer = node_->mesh().connect_wait(address, other_head_timeout);
    if (!peer) {
      continue;
    }
    const auto agent = node_->mesh().find_wait(*peer, agent_actor_name, other_head_timeout);
    if (!agent) {
      continue;
    }
    WhoIsReply who;
    self->request(*agent, other_head_timeout, WhoIsBroker{node_->id()})
        .receive([&](const WhoIsReply& reply) { who = reply; }, [](const caf::error&) {});
    if (who.connected && who.broker.broker != node_->id()) {
      return fail(ec::conflict, "cluster \"" + settings_.cluster + "\" has a head already: node " +
                                    short_string(who.broker.broker) + " at " + who.broker.address +
                                    "; start this node without --head, or stop that one first");
    }
  }
  return {};
}

void ClusterNode::start_agent(AgentHooks hooks) {
  AgentConfig config;
  auto& me = config.self;
  me.id = node_->id();
  me.name = settings_.name;
  me.address = node_->address();
  me.host = host_name();
  me.build = build_string;
  me.pid = static_cast<std::uint64_t>(getpid());
  me.head = settings_.head;
  me.resources = settings_.resources;
  me.labels = settings_.labels;
  config.cluster = settings_.cluster;
  config.times = settings_.times;
  config.broker = broker_;
  if (!settings_.head) {
    config.discovery = discovery_;
  }
  if (const auto offset = clock_offset_ms(); offset != 0) {
    config.wall_ms = [offset] { return wall_ms() + offset; };
  }
  AgentHooks mine = hooks;
  mine.on_refused = [end = end_, theirs = hooks.on_refused](const error& reason) {
    if (theirs) {
      theirs(reason);
    }
    end->set(reason);
  };
  mine.on_left = [end = end_, theirs = hooks.on_left] {
    if (theirs) {
      theirs();
    }
    end->set({});
  };
  mine.on_drain = [this, theirs = hooks.on_drain](Milliseconds deadline,
                                                  std::function<void()> done) {
    if (theirs) {
      theirs(deadline, [this, deadline, done = std::move(done)] { wait_for_work(deadline, done); });
    } else {
      wait_for_work(deadline, done);
    }
  };
  agent_ = Agent::start(node_->system(), node_->mesh(), std::move(config), std::move(mine));
}

/// Calls `done` once no task runs on a compute slot. The agent counts the deadline.
void ClusterNode::wait_for_work(Milliseconds deadline, const std::function<void()>& done) {
  static constexpr Milliseconds step{20};
  const auto counters = compute_->counters();
  if ((counters.running == 0 && counters.queued == 0) || deadline <= step) {
    done();
    return;
  }
  node_->mesh().executor().schedule(
      step, [weak = std::weak_ptr<ComputePool>(compute_), this, deadline, done] {
        if (weak.lock()) {
          wait_for_work(deadline - step, done);
        }
      });
}

void ClusterNode::drain(const std::string& reason) { agent_->drain(reason); }

std::optional<error> ClusterNode::ended() const {
  const std::lock_guard lock{end_->mutex};
  return end_->reason;
}

std::optional<error> ClusterNode::wait_ended(net::Duration timeout) const {
  std::unique_lock lock{end_->mutex};
  end_->changed.wait_for(lock, timeout, [this] { return end_->reason.has_value(); });
  return end_->reason;
}

void ClusterNode::on_ended(std::function<void()> fn) {
  {
    const std::lock_guard lock{end_->mutex};
    if (!end_->reason) {
      end_->listener = std::move(fn);
      return;
    }
  }
  fn();
}

ClusterNode::~ClusterNode() {
  if (api_) {
    api_->stop();
  }
  responder_ = nullptr;
  if (agent_) {
    agent_->stop();
  }
  if (broker_) {
    broker_->stop();
  }
  if (node_) {
    node_->stop();
  }
  if (compute_) {
    compute_->stop(std::chrono::seconds{1});
  }
}

}  // namespace troupe
