// Why: everything an operator decides about one node process, after flags, environment, file and defaults
// have been weighed against each other: plain values that the node is assembled from.
// Thread-safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "net/executor.hpp"
#include "runtime/node.hpp"
#include "supervision/membership.hpp"

namespace troupe {

struct NodeSettings {
  std::string listen = "127.0.0.1:0";  ///< "host:port"; port 0 takes a free one
  std::string advertise;               ///< where peers dial; empty: the bound address
  std::string name = "node";           ///< 1 to 64 bytes; by default the host's name
  std::string cluster = "troupe";
  NodeTls tls;            ///< the three files, or all empty: plaintext
  bool insecure = false;  ///< listen off loopback without TLS

  bool head = false;  ///< hosts the broker
  std::vector<std::string>
      join;  ///< "host:port" of nodes to join through; a head looks there for another head
  std::string discover;  ///< "lan": look for a cluster by multicast; empty: do not

  std::string data;  ///< folder for what must survive the process; empty: nothing survives

  /// Has "cpu" (cores) and "memory" (bytes) always, beside what the operator gave.
  std::map<std::string, double> resources;
  std::map<std::string, std::string> labels;
  std::uint32_t slots = 1;  ///< compute slots, at least 1; by default the "cpu" of the resources

  std::string log_level = "info";  ///< as spdlog names it
  std::string port_file;           ///< receives the port once the node listens; empty: no file

  MembershipTimes times;
  /// How long a broken link may take to come back without losing anything.
  net::Duration link_grace = std::chrono::seconds{10};
};

/// The part of `settings` that the node below the membership needs.
NodeOptions node_options(const NodeSettings& settings);

}  // namespace troupe
