// Why: what a monitoring system may ask of a node, in Prometheus's text format. Labels are peers, states and lanes, so that
// their number is bounded by the size of the cluster.
// Thread-safety: any thread.
#pragma once

#include <string>

namespace troupe {

class Agent;
class ComputePool;
class Node;
struct BrokerCounters;

/// `compute` and `broker` may be null.
std::string metrics_text(Node& node, const Agent& agent, const ComputePool* compute,
                         const BrokerCounters* broker);

}  // namespace troupe
