#include "tests/support/sim_cluster.hpp"

#include <spdlog/spdlog.h>

#include <set>
#include <stdexcept>

#include <caf/send.hpp>

#include "net/discovery.hpp"
#include "supervision/membership_messages.hpp"

namespace troupe::test {

namespace {

net::MeshConfig mesh_config(const NodeId& id, const SimProcess::Options& options,
                            const MembershipTimes& times, std::uint64_t seed) {
  net::MeshConfig config;
  config.links.self = id;
  config.links.name = options.name;
  config.links.cluster = "sim";
  config.links.address = options.address;
  config.links.seed = seed;
  config.watch_linked = false;
  config.heartbeat.interval = times.heartbeat_interval;
  config.heartbeat.suspect_phi = times.suspect_phi;
  config.heartbeat.phi.acceptable_pause = times.heartbeat_pause;
  config.heartbeat.silence = 4 * (times.heartbeat_interval + times.heartbeat_pause);
  config.heartbeat.seed = seed;
  return config;
}

}  // namespace

// -- one process -------------------------------------------------------------------------------------------

SimProcess::SimProcess(SimCluster& cluster, const NodeId& id, Options options)
    : cluster_(cluster), id_(id), options_(std::move(options)) {
  auto& world = cluster.world_;
  const std::uint64_t seed = cluster.seed_ * 1'000'003 + cluster.next_;
  config_.set("scheduler.policy", caf::atom("testing"));
  system_ = std::make_unique<caf::actor_system>(config_);
  system_->await_actors_before_shutdown(false);
  auto& transport = world.make_transport(id_, options_.address);
  if (!world.add_actor_system(*system_, id_)) {
    throw std::logic_error("the simulation needs the testing scheduler");
  }
  mesh_ = net::Mesh::create(*system_, transport, cluster.types_,
                            mesh_config(id_, options_, cluster.times_, seed));
  const auto wall = [&cluster, offset = options_.clock_offset_ms] {
    return cluster.wall_ms() + offset;
  };
  if (options_.store) {
    BrokerOptions broker;
    broker.core.cluster = "sim";
    broker.core.self = id_;
    broker.core.address = options_.address;
    broker.core.new_cluster_id = NodeId{cluster.seed_, 0xC1};
    broker.core.times = cluster.times_;
    broker.store = options_.store;
    broker.wall_ms = wall;
    broker.detached = false;
    broker.on_end = [this](const error& reason) { ended_ = reason; };
    broker_ = start_broker(*system_, std::move(broker)).value();
    mesh_->publish(broker_actor_name, broker_->actor, net::Lane::control);
  }
  AgentConfig agent;
  agent.self.id = id_;
  agent.self.name = options_.name;
  agent.self.address = options_.address;
  agent.self.host = "sim";
  agent.self.pid = cluster.next_;
  agent.self.head = broker_.has_value();
  agent.self.resources = {{"cpu", 1}};
  agent.cluster = "sim";
  agent.times = cluster.times_;
  agent.broker = broker_;
  agent.seed = seed + 1;
  agent.wall_ms = wall;
  agent.detached = false;
  if (!broker_) {
    agent.discovery = net::static_discovery(options_.join);
  }
  AgentHooks hooks;
  hooks.on_joined = [this](std::uint64_t incarnation) { joined_as_ = incarnation; };
  hooks.on_fenced = [this](const std::string&) { ++times_fenced_; };
  hooks.on_refused = [this](const error& reason) { ended_ = reason; };
  hooks.on_left = [this] { left_ = true; };
  agent_ = Agent::start(*system_, *mesh_, std::move(agent), std::move(hooks));
}

SimProcess::~SimProcess() {
  auto& world = cluster_.world_;
  if (world.alive(id_)) {
    // Ends as a process does that is killed: nothing of it runs any more.
    world.crash(id_);
  }
  agent_ = nullptr;
  broker_.reset();
  mesh_->shutdown(net::Duration::zero());
  world.remove_actor_system(*system_);
  mesh_ = nullptr;
}

// -- the cluster -------------------------------------------------------------------------------------------

SimCluster::SimCluster(std::uint64_t seed, MembershipTimes times, net::SimConfig world)
    : seed_(seed), times_(times), world_(seed, world) {
  if (auto added = add_membership_types(types_); !added) {
    throw std::logic_error(added.error().text());
  }
  types_.freeze();
}

SimCluster::~SimCluster() { processes_.clear(); }

std::int64_t SimCluster::wall_ms() const {
  return sim_wall_start + world_.elapsed() / std::chrono::milliseconds{1};
}

SimProcess& SimCluster::start(const std::string& name, std::vector<std::string> join,
                              std::int64_t clock_offset_ms) {
  return start({name, name + ":1", std::move(join), nullptr, clock_offset_ms});
}

SimProcess& SimCluster::start_head(const std::string& name, const std::string& address,
                                   std::vector<std::string> join) {
  return start({name, address, std::move(join), store(name), 0});
}

SimProcess& SimCluster::start(SimProcess::Options options) {
  const auto index = next_++;
  auto& place = processes_[options.name];
  place = nullptr;
  place = std::make_unique<SimProcess>(*this, world_.node_id(index), std::move(options));
  return *place;
}

std::shared_ptr<BrokerStore> SimCluster::store(const std::string& name) {
  auto& place = stores_[name];
  if (!place) {
    place = make_memory_store();
  }
  return place;
}

void SimCluster::kill(const std::string& name, net::SimCrash how) {
  world_.crash(at(name).id(), how);
  processes_.erase(name);
}

void SimCluster::remove(const std::string& name) { processes_.erase(name); }

bool SimCluster::converged() const {
  std::uint64_t epoch = 0;
  const SimProcess* first = nullptr;
  for (const auto& [name, process] : processes_) {
    const auto status = process->agent().status();
    if (status.phase != AgentPhase::member || status.members != processes_.size() ||
        (first != nullptr && status.epoch != epoch)) {
      return false;
    }
    first = first == nullptr ? process.get() : first;
    epoch = status.epoch;
  }
  if (first == nullptr) {
    return true;
  }
  // Views of one epoch are equal, which `same_views` checks where it matters; looking closely at one is enough.
  const auto view = const_cast<SimProcess*>(first)->agent().view();
  for (const auto& [name, process] : processes_) {
    const auto* member = view->find(process->id());
    if (member == nullptr || member->incarnation != process->agent().status().incarnation ||
        (member->state != MemberState::up && member->state != MemberState::draining)) {
      return false;
    }
  }
  return true;
}

bool SimCluster::same_views() const {
  std::set<std::uint64_t> hashes;
  for (const auto& [name, process] : processes_) {
    hashes.insert(process->agent().view()->hash());
  }
  return hashes.size() <= 1;
}

std::optional<net::Duration> SimCluster::converge(net::Duration limit) {
  const auto start = world_.elapsed();
  // Asked at every step this would be most of the work.
  constexpr net::Duration step = std::chrono::milliseconds{10};
  while (!converged()) {
    if (world_.elapsed() - start >= limit) {
      return std::nullopt;
    }
    world_.run_for(step);
  }
  return same_views_wanted_ && !same_views() ? std::nullopt
                                             : std::optional{world_.elapsed() - start};
}

std::string SimCluster::differences() const {
  std::string result;
  for (const auto& [name, process] : processes_) {
    const auto view = process->agent().view();
    const auto status = process->agent().status();
    result += name + " " + std::string{to_string(status.phase)} + " inc " +
              std::to_string(status.incarnation) + " epoch " + std::to_string(view->epoch()) +
              " live " + std::to_string(view->live().size()) + " waiting for " +
              status.waiting_for + ";";
    for (const auto& [id, member] : view->live()) {
      if (member.state != MemberState::up) {
        result += " " + member.name + "=" + std::string{to_string(member.state)} + " (" +
                  member.reason + ")";
      }
    }
    result += "\n";
  }
  return result;
}

}  // namespace troupe::test
