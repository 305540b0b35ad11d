// Why: a member of a cluster, assembled: node, agent, compute slots, HTTP interface, and on a head the broker. What
// `troupe node` runs, and what programs with their own `main` start.
// Thread-safety: `start` and the destructor from one thread; everything else from any.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "net/discovery.hpp"
#include "runtime/agent.hpp"
#include "runtime/compute_pool.hpp"
#include "runtime/node.hpp"
#include "runtime/node_settings.hpp"
#include "supervision/broker.hpp"

namespace troupe {

struct ClusterNodeOptions {
  NodeSettings settings;
  /// Registers the message types of the program, beside those of the membership.
  std::function<expected<void>(net::TypeRegistry&)> types;
  /// Puts another transport around the node's own, for fault injection.
  std::function<std::unique_ptr<net::Transport>(net::Transport&)> wrap_transport;
  /// Called on the agent's thread, beside what the node does itself.
  AgentHooks hooks;
};

class ClusterNode {
 public:
  /// Errors: those of `Node::start`; ec::conflict when another process holds the data folder or the cluster has a head
  /// already. Returns before the node has joined.
  static expected<std::unique_ptr<ClusterNode>> start(ClusterNodeOptions options);
  ~ClusterNode();
  ClusterNode(const ClusterNode&) = delete;
  ClusterNode& operator=(const ClusterNode&) = delete;

  Node& node() noexcept { return *node_; }
  Agent& agent() noexcept { return *agent_; }
  ComputePool& compute() noexcept { return *compute_; }
  const NodeSettings& settings() const noexcept { return settings_; }
  bool is_head() const noexcept { return broker_.has_value(); }

  /// Drains and leaves; `wait_ended` tells when it is done.
  void drain(const std::string& reason);

  /// Why the node should end: no error after it has left. Nothing while it should go on.
  std::optional<error> ended() const;
  /// Waits until it should end, at most `timeout`.
  std::optional<error> wait_ended(net::Duration timeout) const;
  /// `fn` is called once the node should end, on any thread.
  void on_ended(std::function<void()> fn);

 private:
  ClusterNode() = default;

  /// Shared with callbacks that may come late.
  struct End {
    mutable std::mutex mutex;
    mutable std::condition_variable changed;
    std::optional<error> reason;
    std::function<void()> listener;
    void set(error why);
  };

  expected<void> start_broker_if_head(const std::shared_ptr<BrokerStore>& store);
  expected<void> check_no_other_head();
  void start_agent(AgentHooks hooks);
  void wait_for_work(Milliseconds deadline, const std::function<void()>& done);

  NodeSettings settings_;
  std::shared_ptr<End> end_ = std::make_shared<End>();
  std::shared_ptr<net::Discovery> discovery_;
  std::unique_ptr<net::LanResponder> responder_;
  std::shared_ptr<ComputePool> compute_;
  std::unique_ptr<Node> node_;
  std::optional<Broker> broker_;
  std::shared_ptr<Agent> agent_;
  std::shared_ptr<class ClusterApi> api_;
};

}  // namespace troupe
