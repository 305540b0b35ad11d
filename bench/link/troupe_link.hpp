// Why: Troupe's own links for the benchmark, plaintext and TLS from one text.
// Thread-safety: as System.
#pragma once

#include <memory>
#include <vector>

#include "link/caf_system.hpp"
#include "net/caf_error.hpp"
#include "net/mesh.hpp"
#include "net/tcp_transport.hpp"

namespace troupe::bench {

/// Waits for the link when its queue is full.
class MeshPacer final : public Pacer {
 public:
  MeshPacer(net::Mesh& mesh, caf::actor remote) : mesh_(mesh), remote_(std::move(remote)) {}

  bool ready() override { return mesh_.writable(remote_); }
  void when_ready(std::function<void()> fn) override {
    mesh_.when_writable(remote_, std::move(fn));
  }

 private:
  net::Mesh& mesh_;
  caf::actor remote_;
};

class TroupeLink {
 public:
  using Bytes = net::Bytes;

  static Bytes make_bytes(std::size_t size) {
    return net::Bytes::copy_of(std::vector<std::byte>(size, std::byte{0x5A}));
  }

  static void configure(caf::actor_system_config& config) { add_error_category(config); }

  TroupeLink(caf::actor_system& system, std::shared_ptr<const net::TlsContext> tls) {
    registry_.add<Small>("bench.small");
    registry_.add<Note>("bench.note");
    registry_.add<Finish>("bench.finish");
    registry_.add<Counted>("bench.counted");
    registry_.freeze();
    const NodeId self = NodeId::random();
    net::TcpTransportConfig transport;
    transport.endpoint.node = self;
    transport.endpoint.cluster = "bench";
    transport.endpoint.tls = std::move(tls);
    transport_ = std::make_unique<net::TcpTransport>(transport);
    net::MeshConfig config;
    config.links.self = self;
    config.links.cluster = "bench";
    mesh_ = net::Mesh::create(system, *transport_, registry_, config);
  }

  ~TroupeLink() {
    pacer_.reset();
    mesh_->shutdown();
    transport_->shutdown();
  }

  expected<std::uint16_t> publish(const caf::actor& server) {
    mesh_->publish("server", server);
    if (auto listening = transport_->listen("127.0.0.1:0"); !listening) {
      return fail(listening.error());
    }
    mesh_->set_address(transport_->endpoint().address());
    return transport_->endpoint().port();
  }

  expected<caf::actor> connect(std::uint16_t port) {
    auto peer = mesh_->connect_wait("127.0.0.1:" + std::to_string(port));
    if (!peer) {
      return fail(peer.error());
    }
    auto remote = mesh_->find_wait(*peer, "server");
    if (remote) {
      pacer_ = std::make_unique<MeshPacer>(*mesh_, *remote);
    }
    return remote;
  }

  Pacer& pacer() { return *pacer_; }

 private:
  net::TypeRegistry registry_;
  std::unique_ptr<net::TcpTransport> transport_;
  std::shared_ptr<net::Mesh> mesh_;
  std::unique_ptr<MeshPacer> pacer_;
};

}  // namespace troupe::bench
