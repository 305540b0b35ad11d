#include "runtime/node.hpp"

#include <malloc.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>

#include "net/caf_error.hpp"
#include "troupe_version.hpp"

namespace troupe {

NodeTls NodeTls::in_folder(const std::string& folder, const std::string& name) {
  return {folder + "/ca.pem", folder + "/" + name + ".pem", folder + "/" + name + ".key"};
}

void prepare_process() {
  std::signal(SIGPIPE, SIG_IGN);
  constexpr int keep = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, keep);
  mallopt(M_TRIM_THRESHOLD, keep);
}

namespace {

expected<std::shared_ptr<const net::TlsContext>> load_tls(const NodeOptions& options) {
  const NodeTls& tls = options.tls;
  if (!tls.enabled()) {
    return std::shared_ptr<const net::TlsContext>{};
  }
  if (tls.ca_file.empty() || tls.cert_file.empty() || tls.key_file.empty()) {
    return fail(ec::invalid_argument,
                "TLS needs all three of CA, certificate and key; see `troupe certs --help`");
  }
  return net::TlsContext::load({tls.ca_file, tls.cert_file, tls.key_file, options.cluster});
}

std::unique_ptr<caf::actor_system_config> make_config(const NodeOptions& options) {
  auto config = std::make_unique<caf::actor_system_config>();
  // The default policy lets messages from outside wait up to 10 ms; without a bound on the throughput
  // one busy actor starves the others.
  config->set("scheduler.policy", caf::atom("sharing"));
  config->set("scheduler.max-throughput", std::size_t{300});
  const std::size_t cores = std::max(2U, std::thread::hardware_concurrency());
  config->set("scheduler.max-threads", options.actor_threads > 0 ? options.actor_threads : cores);
  add_error_category(*config);
  return config;
}

}  // namespace

expected<std::unique_ptr<Node>> Node::start(NodeOptions options) {
  auto tls = load_tls(options);
  if (!tls) {
    return fail(tls.error());
  }
  std::unique_ptr<Node> node{new Node};
  node->id_ = NodeId::random();
  if (options.types) {
    if (auto added = options.types(node->registry_); !added) {
      return fail(added.error());
    }
  }
  node->registry_.freeze();

  net::TcpTransportConfig transport;
  transport.endpoint.node = node->id_;
  transport.endpoint.cluster = options.cluster;
  transport.endpoint.tls = *tls;
  transport.endpoint.insecure = options.insecure;
  transport.endpoint.limits = options.http;
  node->transport_ = std::make_unique<net::TcpTransport>(transport);
  net::Transport* used = node->transport_.get();
  if (options.wrap_transport) {
    node->wrapper_ = options.wrap_transport(*used);
    used = node->wrapper_.get();
  }

  node->config_ = make_config(options);
  node->system_ = std::make_unique<caf::actor_system>(*node->config_);
  net::MeshConfig mesh;
  mesh.links.self = node->id_;
  mesh.links.name = options.name;
  mesh.links.cluster = options.cluster;
  mesh.links.build = build_string;
  mesh.links.link = options.link;
  mesh.heartbeats = options.heartbeats;
  mesh.watch_linked = options.watch_linked;
  mesh.heartbeat = options.heartbeat;
  node->mesh_ = net::Mesh::create(*node->system_, *used, node->registry_, mesh, options.events);

  if (auto listening = node->transport_->listen(options.listen); !listening) {
    return fail(listening.error());
  }
  node->address_ =
      options.advertise.empty() ? node->transport_->endpoint().address() : options.advertise;
  node->mesh_->set_address(node->address_);
  return node;
}

Node::~Node() { stop(); }

void Node::stop(net::Duration deadline) {
  if (mesh_) {
    mesh_->shutdown(deadline);
  }
  if (transport_) {
    transport_->shutdown();
  }
}

}  // namespace troupe
