// Why: a remote actor must be an ordinary CAF handle. `RemoteProxy` stands for one actor of another node:
// what is enqueued to it is encoded on the spot into the link, without a mailbox hop. `ReplyStage` stands
// behind each request that came over a link, so that a request that nobody will answer (its target
// died with it, a promise was thrown away) is answered with an error at once.
// Thread-safety: any thread, as CAF demands of actors.
#pragma once

#include <atomic>
#include <memory>

#include <caf/actor_addr.hpp>
#include <caf/actor_proxy.hpp>
#include <caf/actor_system.hpp>
#include <caf/monitorable_actor.hpp>

#include "net/wire.hpp"

namespace troupe::net {

class Peer;

class RemoteProxy final : public caf::actor_proxy {
 public:
  RemoteProxy(caf::actor_config& cfg, std::shared_ptr<Peer> peer);
  ~RemoteProxy() override;

  const std::shared_ptr<Peer>& peer() const noexcept { return peer_; }

  /// Messages to actors that were published on the control lane travel there.
  Lane lane() const noexcept { return lane_.load(std::memory_order_relaxed); }
  void set_lane(Lane lane) noexcept { lane_.store(lane, std::memory_order_relaxed); }

  /// How often the peer has sent us this id; guarded by the peer's table.
  std::uint64_t received = 0;

  bool killed() const noexcept { return killed_.load(std::memory_order_acquire); }

  // abstract_actor
  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit* ctx) override;
  void attach(caf::attachable_ptr ptr) override;
  std::size_t detach(const caf::attachable::token& what) override;
  void on_destroy() override;
  const char* name() const override { return "remote"; }

  // monitorable_actor
  bool add_backlink(caf::abstract_actor* x) override;
  bool remove_backlink(caf::abstract_actor* x) override;

  /// A link that the other side asked for: no record goes back.
  void add_remote_link(caf::abstract_actor* local);
  void remove_remote_link(caf::abstract_actor* local);

  /// Ends the proxy: its monitors and links hear `reason`.
  void kill_proxy(caf::execution_unit* ctx, caf::error reason) override;

 private:
  friend class Peer;

  void count_attached(std::ptrdiff_t change);
  void bounce_dead(caf::mailbox_element_ptr& what);

  const std::shared_ptr<Peer> peer_;
  std::atomic<Lane> lane_{Lane::user};
  std::atomic<bool> killed_{false};
  // Monitors and links keep the proxy alive (in the peer's table), as they would a local actor.
  std::atomic<std::ptrdiff_t> attached_{0};
};

/// The last stage of a request that came over a link: passes the response on, once.
class ReplyStage final : public caf::monitorable_actor {
 public:
  ReplyStage(caf::actor_config& cfg, std::shared_ptr<Peer> peer, caf::strong_actor_ptr requester,
             caf::actor_addr responder, caf::message_id mid);

  /// The request goes back to the node that it came from, which answers for it from now on.
  void hand_over() noexcept { answered_.store(true); }

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit* ctx) override;
  void on_destroy() override;
  const char* name() const override { return "reply"; }

 private:
  std::shared_ptr<Peer> peer_;
  caf::strong_actor_ptr requester_;
  caf::actor_addr responder_;  // weak: the responder may hold us
  caf::message_id mid_;
  std::atomic<bool> answered_{false};
};

/// The reply stage behind a handle, or null.
ReplyStage* as_reply_stage(const caf::strong_actor_ptr& handle);

/// The proxy behind a handle, or null for a local actor.
RemoteProxy* as_proxy(const caf::strong_actor_ptr& handle);

}  // namespace troupe::net
