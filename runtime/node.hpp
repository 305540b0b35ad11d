// Why: one process of a cluster, assembled: the actor system with the settings that Troupe needs, the
// transport with its port, and the mesh that joins them. Programs, the command line, tests and
// benchmarks start nodes through this one door.
// Thread-safety: `start` and `stop` from one thread; the accessors from any.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <caf/actor_system.hpp>

#include "net/mesh.hpp"
#include "net/tcp_transport.hpp"
#include "net/type_registry.hpp"

namespace troupe {

/// Certificates of a node, see docs/tls.md. All empty: plaintext.
struct NodeTls {
  std::string ca_file;
  std::string cert_file;
  std::string key_file;

  bool enabled() const { return !ca_file.empty() || !cert_file.empty() || !key_file.empty(); }

  /// The files that `troupe certs issue` writes into `folder` for `name`.
  static NodeTls in_folder(const std::string& folder, const std::string& name);
};

struct NodeOptions {
  std::string listen = "127.0.0.1:0";  ///< "host:port"; port 0 takes a free one
  std::string advertise;               ///< where peers dial; empty: the bound address
  std::string name = "node";
  std::string cluster = "troupe";
  NodeTls tls;
  bool insecure = false;          ///< listen off loopback without TLS
  std::size_t actor_threads = 0;  ///< of the actor system; 0: as many as cores, at least 2
  net::LinkConfig link;
  bool heartbeats = true;
  bool watch_linked = true;  ///< heartbeats with every linked node; false: whom the owner watches
  net::HeartbeatConfig heartbeat;
  net::HttpLimits http;
  /// Registers the message types of the program; the registry is frozen afterwards.
  std::function<expected<void>(net::TypeRegistry&)> types;
  /// Puts another transport around the node's own, for fault injection.
  std::function<std::unique_ptr<net::Transport>(net::Transport&)> wrap_transport;
  net::MeshEvents events;
};

class Node {
 public:
  /// Errors: ec::invalid_argument (options), ec::system_error (port, files), ec::conflict (types).
  static expected<std::unique_ptr<Node>> start(NodeOptions options);

  /// Stops (see `stop`), if that has not happened.
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  caf::actor_system& system() noexcept { return *system_; }
  net::Mesh& mesh() noexcept { return *mesh_; }
  net::TcpTransport& transport() noexcept { return *transport_; }
  const net::TypeRegistry& types() const noexcept { return registry_; }
  const NodeId& id() const noexcept { return id_; }

  /// Where peers dial this node.
  const std::string& address() const noexcept { return address_; }

  /// Says goodbye to the peers and ends the transport. Actors of the program must have been told to end
  /// before; the actor system is destroyed with the node and waits for them.
  void stop(net::Duration deadline = std::chrono::seconds{5});

 private:
  Node() = default;

  NodeId id_;
  std::string address_;
  net::TypeRegistry registry_;
  std::unique_ptr<caf::actor_system_config> config_;
  std::unique_ptr<net::TcpTransport> transport_;
  std::unique_ptr<net::Transport> wrapper_;
  std::unique_ptr<caf::actor_system> system_;
  std::shared_ptr<net::Mesh> mesh_;
};

/// Settings for memory and signals that every Troupe process wants; call first in main. Large blocks are
/// kept instead of being given back to the system, because fresh memory costs many times a warm copy.
void prepare_process();

}  // namespace troupe
