// Why: people, probes and monitoring see the cluster over HTTP on the node's own port. Answers are put together on a
// thread of their own, started with the first request, so that a large view costs the I/O threads nothing.
// Thread-safety: any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <caf/actor.hpp>

#include "runtime/agent.hpp"
#include "runtime/compute_pool.hpp"
#include "runtime/node.hpp"

namespace troupe {

class ClusterApi : public std::enable_shared_from_this<ClusterApi> {
 public:
  /// Adds the routes. All three must outlive `stop`.
  static std::shared_ptr<ClusterApi> open(Node& node, std::shared_ptr<Agent> agent,
                                          std::shared_ptr<ComputePool> compute,
                                          std::shared_ptr<const BrokerCounters> broker);

  /// Refuses new requests and ends the thread.
  void stop();

 private:
  using Work = std::function<void(const net::HttpRequest&, const net::HttpResponder&)>;

  ClusterApi(Node& node, std::shared_ptr<Agent> agent, std::shared_ptr<ComputePool> compute,
             std::shared_ptr<const BrokerCounters> broker);
  void add_routes();
  void route(const std::string& method, const std::string& path, Work work);
  bool run(std::function<void()> fn);

  void cluster(const net::HttpResponder& respond);
  void events(const net::HttpRequest& request, const net::HttpResponder& respond);
  void node_command(const net::HttpRequest& request, const net::HttpResponder& respond);
  net::HttpResponse ready() const;

  Node& node_;
  std::shared_ptr<Agent> agent_;
  std::shared_ptr<ComputePool> compute_;
  std::shared_ptr<const BrokerCounters> broker_;

  std::mutex mutex_;
  caf::actor worker_;
  bool stopped_ = false;
};

}  // namespace troupe
