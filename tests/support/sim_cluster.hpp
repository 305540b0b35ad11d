// Why: a whole cluster of brokers and agents in one process, under virtual time and from one seed, for tests and
// benchmarks of membership. Each process has a transport, an actor system, a mesh and an agent, as `ClusterNode` has.
// Thread-safety: none; the thread that runs the world.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include "net/sim.hpp"
#include "runtime/agent.hpp"
#include "supervision/broker.hpp"

namespace troupe::test {

/// The wall clock of simulated nodes when the world begins, ms since 1970.
inline constexpr std::int64_t sim_wall_start = 1'764'500'000'000;

class SimCluster;

/// One process: from its start until it is killed or ends.
class SimProcess {
 public:
  struct Options {
    std::string name;
    std::string address;
    std::vector<std::string> join;
    std::shared_ptr<BrokerStore> store;  ///< makes it a head
    std::int64_t clock_offset_ms = 0;
  };

  SimProcess(SimCluster& cluster, const NodeId& id, Options options);
  ~SimProcess();
  SimProcess(const SimProcess&) = delete;
  SimProcess& operator=(const SimProcess&) = delete;

  const NodeId& id() const { return id_; }
  const std::string& name() const { return options_.name; }
  const std::string& address() const { return options_.address; }
  Agent& agent() { return *agent_; }
  net::Mesh& mesh() { return *mesh_; }
  caf::actor_system& system() { return *system_; }
  bool is_head() const { return broker_.has_value(); }
  const std::optional<Broker>& broker() const { return broker_; }
  /// The broker or the cluster wanted the process to end.
  const std::optional<error>& ended() const { return ended_; }
  bool left() const { return left_; }
  std::uint64_t joined_as() const { return joined_as_; }
  std::uint64_t times_fenced() const { return times_fenced_; }

 private:
  SimCluster& cluster_;
  NodeId id_;
  Options options_;
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
  std::shared_ptr<net::Mesh> mesh_;
  std::optional<Broker> broker_;
  std::shared_ptr<Agent> agent_;
  std::optional<error> ended_;
  bool left_ = false;
  std::uint64_t joined_as_ = 0;
  std::uint64_t times_fenced_ = 0;
};

class SimCluster {
 public:
  explicit SimCluster(std::uint64_t seed, MembershipTimes times = MembershipTimes::loopback(),
                      net::SimConfig world = {});
  ~SimCluster();

  net::SimWorld& world() { return world_; }
  const MembershipTimes& times() const { return times_; }
  std::uint64_t seed() const { return seed_; }
  std::int64_t wall_ms() const;

  /// Starts a process on "<name>:1" unless an address is given.
  SimProcess& start(const std::string& name, std::vector<std::string> join = {"head:1"},
                    std::int64_t clock_offset_ms = 0);
  /// A head whose books are kept by the cluster object under its name, so that it can come back.
  SimProcess& start_head(const std::string& name = "head", const std::string& address = "head:1",
                         std::vector<std::string> join = {});
  SimProcess& start(SimProcess::Options options);

  /// Ends the process as kill -9 or a power cut does. The object is gone afterwards.
  void kill(const std::string& name, net::SimCrash how = net::SimCrash::process);
  /// Removes a process that has left by itself.
  void remove(const std::string& name);

  SimProcess& at(const std::string& name) { return *processes_.at(name); }
  bool has(const std::string& name) const { return processes_.count(name) != 0; }
  std::map<std::string, std::unique_ptr<SimProcess>>& processes() { return processes_; }

  /// Every process is a member, all views have one epoch and show who is there.
  bool converged() const;
  /// The views are equal, record by record.
  bool same_views() const;
  /// Whether `converge` also asks `same_views`, which costs the square of the number of nodes.
  void check_views(bool wanted) { same_views_wanted_ = wanted; }
  /// Virtual time until `converged`, or nothing within `limit`.
  std::optional<net::Duration> converge(net::Duration limit);
  /// What keeps it from being converged, for messages of failed tests.
  std::string differences() const;

  std::shared_ptr<BrokerStore> store(const std::string& name);

 private:
  friend class SimProcess;
  std::uint64_t seed_;
  MembershipTimes times_;
  net::TypeRegistry types_;
  net::SimWorld world_;
  std::uint32_t next_ = 0;
  bool same_views_wanted_ = true;
  std::map<std::string, std::shared_ptr<BrokerStore>> stores_;
  std::map<std::string, std::unique_ptr<SimProcess>> processes_;
};

}  // namespace troupe::test
