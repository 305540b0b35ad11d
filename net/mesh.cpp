#include "net/mesh.hpp"

#include <spdlog/spdlog.h>

#include <chrono>
#include <condition_variable>

#include "net/caf_error.hpp"

namespace troupe::net {

namespace {

// A result that one thread waits for and another delivers; the waiter may have given up.
template <class T>
struct Slot {
  std::mutex mutex;
  std::condition_variable ready;
  std::optional<expected<T>> value;

  void set(expected<T> result) {
    const std::lock_guard lock{mutex};
    value = std::move(result);
    ready.notify_all();
  }

  expected<T> wait(Duration timeout, const std::string& what) {
    std::unique_lock lock{mutex};
    if (!ready.wait_for(lock, timeout, [this] { return value.has_value(); })) {
      return fail(ec::timeout, what + " took longer than allowed");
    }
    return std::move(*value);
  }
};

}  // namespace

std::shared_ptr<Mesh> Mesh::create(caf::actor_system& system, Transport& transport,
                                   const TypeRegistry& registry, MeshConfig config,
                                   MeshEvents events) {
  std::shared_ptr<Mesh> mesh{
      new Mesh(system, transport, registry, std::move(config), std::move(events))};
  mesh->manager_ = std::make_shared<LinkManager>(transport, mesh->config_.links, *mesh);
  mesh->manager_->start();
  return mesh;
}

Mesh::Mesh(caf::actor_system& system, Transport& transport, const TypeRegistry& registry,
           MeshConfig config, MeshEvents events)
    : transport_(transport),
      executor_(transport.executor(StreamPurpose::link)),
      config_(std::move(config)),
      shared_(std::make_shared<MeshShared>()),
      listeners_(std::make_shared<MeshListeners>()) {
  listeners_->add(std::move(events));
  shared_->system = &system;
  shared_->registry = &registry;
  shared_->self = config_.links.self;
  addresses_[shared_->self] = config_.links.address;
  if (config_.heartbeats) {
    if (config_.watch_linked) {
      config_.heartbeat.allow = [this](const NodeId& node) { return peer(node) != nullptr; };
    }
    config_.heartbeat.on_verdict = [listeners = listeners_](const NodeId& node,
                                                            HeartbeatVerdict verdict,
                                                            const std::string& reason) {
      for (const auto& listener : *listeners->all()) {
        if (listener.on_verdict) {
          listener.on_verdict(node, verdict, reason);
        }
      }
    };
    heartbeats_ = std::make_unique<Heartbeats>(transport_, shared_->self, config_.heartbeat);
  }
}

Mesh::~Mesh() { shutdown(); }

void Mesh::set_address(std::string address) {
  {
    const std::lock_guard lock{mutex_};
    addresses_[shared_->self] = address;
  }
  manager_->set_address(std::move(address));
}

std::shared_ptr<Peer> Mesh::peer(const NodeId& node) const {
  const std::lock_guard lock{mutex_};
  const auto it = peers_.find(node);
  return it == peers_.end() ? nullptr : it->second;
}

// -- names -------------------------------------------------------------------------------------------------

void Mesh::publish(const std::string& name, const caf::actor& actor, Lane lane) {
  auto handle = caf::actor_cast<caf::strong_actor_ptr>(actor);
  if (lane == Lane::control) {
    const std::unique_lock lock{shared_->control_mutex};
    shared_->control_actors.insert(handle->id());
    shared_->any_control.store(true);
  }
  Published old;
  const std::lock_guard lock{mutex_};
  old = std::exchange(published_[name], Published{std::move(handle), lane});
}

void Mesh::unpublish(const std::string& name) {
  Published old;
  const std::lock_guard lock{mutex_};
  if (const auto it = published_.find(name); it != published_.end()) {
    old = std::move(it->second);
    published_.erase(it);
  }
}

expected<Mesh::Published> Mesh::published(const std::string& name) const {
  const std::lock_guard lock{mutex_};
  const auto it = published_.find(name);
  if (it == published_.end()) {
    return fail(ec::not_found, "no actor is published as \"" + name + "\"");
  }
  return it->second;
}

// -- connecting --------------------------------------------------------------------------------------------

void Mesh::connect(const std::string& address, std::function<void(expected<NodeId>)> done) {
  if (closed_.load()) {
    done(fail(ec::closed, "this node is shutting down"));
    return;
  }
  manager_->connect(address, std::move(done));
}

expected<NodeId> Mesh::connect_wait(const std::string& address, Duration timeout) {
  auto slot = std::make_shared<Slot<NodeId>>();
  connect(address, [slot](expected<NodeId> result) { slot->set(std::move(result)); });
  return slot->wait(timeout, "connecting to " + address);
}

void Mesh::find(const NodeId& node, const std::string& name, Duration timeout, FindHandler done) {
  if (node == shared_->self) {
    auto entry = published(name);
    if (entry) {
      done(caf::actor_cast<caf::actor>(entry->actor));
    } else {
      done(fail(entry.error()));
    }
    return;
  }
  const auto to = peer(node);
  if (!to) {
    done(fail(ec::node_unreachable, "there is no link to node " + short_string(node)));
    return;
  }
  to->find(name, timeout, [done = std::move(done)](expected<caf::strong_actor_ptr> result) {
    if (result) {
      done(caf::actor_cast<caf::actor>(*result));
    } else {
      done(fail(result.error()));
    }
  });
}

expected<caf::actor> Mesh::find_wait(const NodeId& node, const std::string& name,
                                     Duration timeout) {
  auto slot = std::make_shared<Slot<caf::actor>>();
  find(node, name, timeout, [slot](expected<caf::actor> result) { slot->set(std::move(result)); });
  return slot->wait(timeout + std::chrono::seconds{1}, "looking for \"" + name + "\"");
}

// -- handles -----------------------------------------------------------------------------------------------

NodeId Mesh::node_of(const caf::actor& handle) const {
  const auto* proxy = as_proxy(caf::actor_cast<caf::strong_actor_ptr>(handle));
  return proxy != nullptr ? proxy->peer()->id() : shared_->self;
}

bool Mesh::writable(const caf::actor& handle) const {
  const auto* proxy = as_proxy(caf::actor_cast<caf::strong_actor_ptr>(handle));
  return proxy == nullptr || proxy->peer()->link()->writable(proxy->lane());
}

void Mesh::when_writable(const caf::actor& handle, std::function<void()> fn) {
  const auto* proxy = as_proxy(caf::actor_cast<caf::strong_actor_ptr>(handle));
  if (proxy == nullptr) {
    fn();
  } else {
    proxy->peer()->when_writable(proxy->lane(), std::move(fn));
  }
}

expected<caf::strong_actor_ptr> Mesh::import_foreign(const WireActor& actor) {
  auto to = peer(actor.node);
  if (!to) {
    // Makes the peer through make_handler, on this thread.
    if (closed_.load() || !manager_->open(actor.node, actor.address) || !(to = peer(actor.node))) {
      return fail(ec::limit_exceeded,
                  "too many nodes are named that were never reached; handle of node " +
                      short_string(actor.node) + " refused");
    }
  }
  return to->import_actor(actor.id, false);
}

caf::strong_actor_ptr Mesh::find_exported(std::uint64_t id) const {
  std::vector<std::shared_ptr<Peer>> peers;
  {
    const std::lock_guard lock{mutex_};
    for (const auto& [node, entry] : peers_) {
      peers.push_back(entry);
    }
  }
  for (const auto& entry : peers) {
    if (auto actor = entry->exported(id)) {
      return actor;
    }
  }
  return nullptr;
}

void Mesh::forget_pending(std::uint64_t requester, caf::message_id mid) {
  std::vector<std::shared_ptr<Peer>> peers;
  {
    const std::lock_guard lock{mutex_};
    if (peers_.size() < 2) {
      return;
    }
    for (const auto& [node, entry] : peers_) {
      peers.push_back(entry);
    }
  }
  for (const auto& entry : peers) {
    if (entry->forget_pending(requester, mid)) {
      return;
    }
  }
}

void Mesh::pin_for_handover(const caf::strong_actor_ptr& handle) {
  executor_.schedule(config_.links.link.grace * 2, [handle] {});
}

std::string Mesh::address_of(const NodeId& node) const {
  const std::lock_guard lock{mutex_};
  const auto it = addresses_.find(node);
  return it == addresses_.end() ? std::string{} : it->second;
}

std::vector<NodeId> Mesh::linked() const {
  std::vector<NodeId> result;
  const std::lock_guard lock{mutex_};
  for (const auto& [node, entry] : peers_) {
    result.push_back(node);
  }
  return result;
}

void Mesh::add_listener(MeshEvents events) { listeners_->add(std::move(events)); }

// -- state -------------------------------------------------------------------------------------------------

LinkCounters Mesh::link_counters(const NodeId& node) const {
  const auto to = peer(node);
  return to ? to->link()->counters() : LinkCounters{};
}

std::optional<HeartbeatStats> Mesh::heartbeat(const NodeId& node) const {
  return heartbeats_ ? heartbeats_->stats(node) : std::nullopt;
}

Mesh::TableSizes Mesh::table_sizes(const NodeId& node) const {
  const auto to = peer(node);
  return to ? TableSizes{to->export_count(), to->proxy_count(), to->pending_count()} : TableSizes{};
}

void Mesh::drop_connection(const NodeId& node) {
  executor_.post([manager = manager_, node] { manager->drop_connection(node); });
}

void Mesh::disconnect(const NodeId& node, const error& reason) {
  executor_.post([manager = manager_, node, reason] { manager->disconnect(node, reason); });
}

void Mesh::shutdown(Duration deadline) {
  if (closed_.exchange(true)) {
    return;
  }
  if (heartbeats_) {
    heartbeats_->stop();
  }
  const error reason{ec::closed, "node is shutting down"};
  if (executor_.on_thread()) {
    manager_->stop(reason);
  } else {
    auto slot = std::make_shared<Slot<bool>>();
    executor_.post([manager = manager_, slot, reason] {
      manager->stop(reason);
      slot->set(true);
    });
    if (deadline > Duration::zero() && !slot->wait(deadline, "ending the links")) {
      spdlog::warn("the links were not ended within the deadline");
    }
  }
  std::map<std::string, Published> published;
  const std::lock_guard lock{mutex_};
  published.swap(published_);
}

// -- LinkObserver ------------------------------------------------------------------------------------------

std::shared_ptr<LinkHandler> Mesh::make_handler(const std::shared_ptr<Link>& link) {
  auto made = std::make_shared<Peer>(shared_, weak_from_this(), executor_, link);
  const std::lock_guard lock{mutex_};
  peers_[link->peer()] = made;
  return made;
}

void Mesh::on_link_up(const std::shared_ptr<Link>& link, const Hello& hello) {
  {
    const std::lock_guard lock{mutex_};
    addresses_[link->peer()] = hello.address;
  }
  if (heartbeats_ && config_.watch_linked) {
    heartbeats_->watch(link->peer(), hello.address);
  }
  for (const auto& listener : *listeners_->all()) {
    if (listener.on_up) {
      listener.on_up(hello);
    }
  }
}

void Mesh::on_heartbeat_stream(OpenStream stream) {
  if (heartbeats_ && !closed_.load()) {
    heartbeats_->accept(std::move(stream));
  } else {
    stream.stream->close({ec::closed, "no heartbeats here"});
  }
}

void Mesh::peer_down(const NodeId& node, const error& reason) {
  std::shared_ptr<Peer> gone;
  {
    const std::lock_guard lock{mutex_};
    const auto it = peers_.find(node);
    // A new link to the same node may already have replaced this one.
    if (it != peers_.end() && it->second->link()->state() == LinkState::down) {
      gone = std::move(it->second);
      peers_.erase(it);
      addresses_.erase(node);
    }
  }
  if (heartbeats_ && config_.watch_linked && gone) {
    heartbeats_->forget(node);
  }
  for (const auto& listener : *listeners_->all()) {
    if (listener.on_down) {
      listener.on_down(node, reason);
    }
  }
}

}  // namespace troupe::net
