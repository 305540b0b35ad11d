// Why: what a program holds to talk to actors on other nodes: it joins a CAF actor system to the links of
// this node, so that handles of remote actors behave like local ones. One per node.
// Thread-safety: any thread, except as stated. The `*_wait` members block and must not be called from
// actors or I/O threads.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>

#include "net/heartbeat.hpp"
#include "net/link_manager.hpp"
#include "net/peer.hpp"

namespace troupe::net {

struct MeshConfig {
  LinkManagerConfig links;
  /// Heartbeats, on their own connection and thread …
  bool heartbeats = true;
  /// … with every linked peer. False: with those that the owner watches (`Mesh::heartbeats`).
  bool watch_linked = true;
  HeartbeatConfig heartbeat;
};

/// Told when links come and go (on the link executor's thread), and what heartbeats say of watched peers
/// (on the heartbeat executor's thread). Must be quick.
struct MeshEvents {
  std::function<void(const Hello& peer)> on_up;
  std::function<void(const NodeId& peer, const error& reason)> on_down;
  std::function<void(const NodeId& peer, HeartbeatVerdict verdict, const std::string& reason)>
      on_verdict;
};

/// Who is told; grows only.
class MeshListeners {
 public:
  void add(MeshEvents events) {
    const std::lock_guard lock{mutex_};
    auto more = std::make_shared<std::vector<MeshEvents>>(*all_);
    more->push_back(std::move(events));
    all_ = std::move(more);
  }
  std::shared_ptr<const std::vector<MeshEvents>> all() const {
    const std::lock_guard lock{mutex_};
    return all_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const std::vector<MeshEvents>> all_ =
      std::make_shared<const std::vector<MeshEvents>>();
};

class Mesh final : public LinkObserver, public std::enable_shared_from_this<Mesh> {
 public:
  using FindHandler = std::function<void(expected<caf::actor>)>;

  /// `system`, `transport` and `registry` must outlive the mesh's `shutdown`; the registry must be
  /// frozen. CAF's io module must not be loaded into `system`.
  static std::shared_ptr<Mesh> create(caf::actor_system& system, Transport& transport,
                                      const TypeRegistry& registry, MeshConfig config,
                                      MeshEvents events = {});
  ~Mesh() override;
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  const NodeId& self() const noexcept { return shared_->self; }

  /// Where peers can dial this node, once the listener's port is known.
  void set_address(std::string address);

  /// Makes `actor` findable as `name`. On the control lane its messages overtake bulk traffic; use it
  /// for small messages of the control plane. Replaces an older entry.
  void publish(const std::string& name, const caf::actor& actor, Lane lane = Lane::user);
  void unpublish(const std::string& name);

  /// Links to the node at `address`. `done` runs on the executor's thread.
  void connect(const std::string& address, std::function<void(expected<NodeId>)> done);
  expected<NodeId> connect_wait(const std::string& address,
                                Duration timeout = std::chrono::seconds{10});

  /// The actor published as `name` on `node`. Errors: ec::not_found, ec::node_unreachable,
  /// ec::timeout. `done` runs on the executor's thread.
  void find(const NodeId& node, const std::string& name, Duration timeout, FindHandler done);
  expected<caf::actor> find_wait(const NodeId& node, const std::string& name,
                                 Duration timeout = std::chrono::seconds{10});

  /// The node that `handle` lives on; this node for local actors.
  NodeId node_of(const caf::actor& handle) const;

  /// Whom this node has a link with, connected or about to be.
  std::vector<NodeId> linked() const;

  /// Also told of links, beside the events given to `create`.
  void add_listener(MeshEvents events);

  /// Null when they are switched off.
  Heartbeats* heartbeats() noexcept { return heartbeats_.get(); }

  Executor& executor() noexcept { return executor_; }

  /// Whether a message to `handle` would be taken now. Always true for local actors.
  bool writable(const caf::actor& handle) const;

  /// After a refusal: `fn` runs once, when messages to `handle` are taken again or its node is lost. On
  /// the executor's thread, or at once. Use it to send yourself a message.
  void when_writable(const caf::actor& handle, std::function<void()> fn);

  LinkCounters link_counters(const NodeId& node) const;
  const MeshCounters& counters() const noexcept { return shared_->counters; }
  std::optional<HeartbeatStats> heartbeat(const NodeId& node) const;

  /// Sizes of the tables for `node`: exports, proxies, pending requests.
  struct TableSizes {
    std::size_t exports = 0;
    std::size_t proxies = 0;
    std::size_t pending = 0;
  };
  TableSizes table_sizes(const NodeId& node) const;

  /// Breaks the connection to `node` as the network would (fault tests). It is remade.
  void drop_connection(const NodeId& node);

  /// Ends the link to `node` for good.
  void disconnect(const NodeId& node, const error& reason);

  /// Says goodbye to all peers and kills all proxies. Blocks for at most `deadline`; with zero it only
  /// starts (on a simulated transport, where nothing runs meanwhile). Later calls fail with ec::closed.
  void shutdown(Duration deadline = std::chrono::seconds{5});

  // -- for peers (executor's thread unless stated) ---------------------------------------------------

  struct Published {
    caf::strong_actor_ptr actor;
    Lane lane = Lane::user;
  };
  expected<Published> published(const std::string& name) const;  // any thread
  /// A handle for an actor of a third node; links to it when there is no link yet.
  /// Errors: ec::limit_exceeded, ec::closed.
  expected<caf::strong_actor_ptr> import_foreign(const WireActor& actor);
  /// A local actor that some peer knows as `id`.
  caf::strong_actor_ptr find_exported(std::uint64_t id) const;        // any thread
  void forget_pending(std::uint64_t requester, caf::message_id mid);  // any thread
  /// Keeps a handle that was passed on to a third node until that node can have claimed it.
  void pin_for_handover(const caf::strong_actor_ptr& handle);  // any thread
  std::string address_of(const NodeId& node) const;            // any thread
  void peer_down(const NodeId& node, const error& reason);

  // LinkObserver
  std::shared_ptr<LinkHandler> make_handler(const std::shared_ptr<Link>& link) override;
  void on_link_up(const std::shared_ptr<Link>& link, const Hello& peer) override;
  void on_heartbeat_stream(OpenStream stream) override;

 private:
  Mesh(caf::actor_system& system, Transport& transport, const TypeRegistry& registry,
       MeshConfig config, MeshEvents events);
  std::shared_ptr<Peer> peer(const NodeId& node) const;

  Transport& transport_;
  Executor& executor_;
  MeshConfig config_;
  std::shared_ptr<MeshShared> shared_;
  std::shared_ptr<LinkManager> manager_;
  std::unique_ptr<Heartbeats> heartbeats_;
  std::shared_ptr<MeshListeners> listeners_;  // heartbeats may outlive the mesh by a moment

  mutable std::mutex mutex_;
  std::map<NodeId, std::shared_ptr<Peer>> peers_;
  std::map<NodeId, std::string> addresses_;
  std::map<std::string, Published> published_;
  std::atomic<bool> closed_{false};
};

}  // namespace troupe::net
