// Why: the handles that one message carries are exported with it or not at all: counted while it is
// encoded, watched for their end after it was queued (so that DOWN cannot overtake it), and uncounted
// when the link refuses it. Internal to peers.
// Thread-safety: lives on one thread's stack.
#pragma once

#include <vector>

#include "net/mesh.hpp"
#include "net/message_codec.hpp"
#include "net/peer.hpp"

namespace troupe::net {

class ExportScope final : public HandleCodec {
 public:
  explicit ExportScope(Peer& peer) : peer_(peer) {}

  /// Counts a local actor as sent to the peer once more and returns its id.
  std::uint64_t count(const caf::strong_actor_ptr& actor) {
    bool fresh = false;
    peer_.count_export(actor, fresh);
    if (fresh) {
      fresh_.push_back(actor);
    }
    if (counted_ == 0) {
      first_ = actor->id();
    } else {
      more_.push_back(actor->id());
    }
    ++counted_;
    return actor->id();
  }

  expected<WireActor> export_actor(const caf::strong_actor_ptr& handle) override {
    const RemoteProxy* proxy = as_proxy(handle);
    const auto mesh = peer_.mesh_.lock();
    if (proxy == nullptr) {
      const auto id = count(handle);
      return WireActor{peer_.shared_->self, id,
                       mesh ? mesh->address_of(peer_.shared_->self) : std::string{}};
    }
    const NodeId node = proxy->peer()->id();
    if (node == peer_.id()) {
      return WireActor{node, handle->id(), {}};
    }
    if (!mesh) {
      return fail(ec::closed, "this node is shutting down");
    }
    mesh->pin_for_handover(handle);
    return WireActor{node, handle->id(), mesh->address_of(node)};
  }

  expected<caf::strong_actor_ptr> import_actor(const WireActor&) override {
    return fail(ec::invalid_argument, "a message is being encoded, not decoded");
  }

  /// The message is queued.
  void commit() {
    for (const auto& actor : fresh_) {
      peer_.attach_notifier(actor);
    }
  }

  /// The message was not queued.
  void rollback() {
    if (counted_ > 0) {
      peer_.uncount_export(first_, 1);
    }
    for (const auto id : more_) {
      peer_.uncount_export(id, 1);
    }
  }

 private:
  Peer& peer_;
  std::size_t counted_ = 0;
  std::uint64_t first_ = 0;  // most messages carry one id: their sender's
  std::vector<std::uint64_t> more_;
  std::vector<caf::strong_actor_ptr> fresh_;
};

/// Turns the handles of a received message into proxies and local actors.
class ImportScope final : public HandleCodec {
 public:
  explicit ImportScope(Peer& peer) : peer_(peer) {}

  expected<WireActor> export_actor(const caf::strong_actor_ptr&) override {
    return fail(ec::invalid_argument, "a message is being decoded, not encoded");
  }

  expected<caf::strong_actor_ptr> import_actor(const WireActor& actor) override {
    if (actor.node == peer_.id()) {
      return peer_.import_actor(actor.id, true);
    }
    if (actor.node == peer_.shared_->self) {
      return peer_.local_actor(actor.id);
    }
    const auto mesh = peer_.mesh_.lock();
    if (!mesh) {
      return fail(ec::closed, "this node is shutting down");
    }
    return mesh->import_foreign(actor);
  }

 private:
  Peer& peer_;
};

}  // namespace troupe::net
