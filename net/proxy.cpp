#include "net/proxy.hpp"

#include <typeinfo>

#include <caf/default_attachable.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/make_message.hpp>

#include "net/caf_error.hpp"
#include "net/peer.hpp"

namespace troupe::net {

RemoteProxy::RemoteProxy(caf::actor_config& cfg, std::shared_ptr<Peer> peer)
    : caf::actor_proxy(cfg), peer_(std::move(peer)) {}

RemoteProxy::~RemoteProxy() = default;

void RemoteProxy::on_destroy() {
  peer_->proxy_destroyed(*this);
  caf::actor_proxy::on_destroy();
}

void RemoteProxy::enqueue(caf::mailbox_element_ptr what, caf::execution_unit* ctx) {
  if (killed()) {
    bounce_dead(what);
    return;
  }
  peer_->send_message(*this, std::move(what), ctx);
}

void RemoteProxy::bounce_dead(caf::mailbox_element_ptr& what) {
  const caf::error reason = fail_state();
  if (reason && reason.category() == error_category && what->sender && what->mid.is_request()) {
    // The node is lost: CAF would only say that the receiver is down.
    what->sender->enqueue(nullptr, what->mid.response_id(), caf::make_message(reason), nullptr);
  } else {
    bounce(what);
  }
}

void RemoteProxy::attach(caf::attachable_ptr ptr) {
  // Counted first: an attachable of a proxy that was killed meanwhile is called and not kept, and
  // `count_attached` does not pin killed proxies.
  count_attached(1);
  caf::actor_proxy::attach(std::move(ptr));
}

std::size_t RemoteProxy::detach(const caf::attachable::token& what) {
  const auto removed = caf::actor_proxy::detach(what);
  count_attached(-static_cast<std::ptrdiff_t>(removed));
  return removed;
}

bool RemoteProxy::add_backlink(caf::abstract_actor* x) {
  // Runs under the mutexes of both actors: the record is only posted.
  if (!caf::actor_proxy::add_backlink(x)) {
    return false;
  }
  count_attached(1);
  peer_->post_link(*this, caf::strong_actor_ptr{x->ctrl()}, RecordKind::link);
  return true;
}

bool RemoteProxy::remove_backlink(caf::abstract_actor* x) {
  if (!caf::actor_proxy::remove_backlink(x)) {
    return false;
  }
  count_attached(-1);
  peer_->post_link(*this, caf::strong_actor_ptr{x->ctrl()}, RecordKind::unlink);
  return true;
}

void RemoteProxy::add_remote_link(caf::abstract_actor* local) {
  auto link = caf::default_attachable::make_link(address(), local->address());
  attach(std::move(link));
}

void RemoteProxy::remove_remote_link(caf::abstract_actor* local) {
  const caf::default_attachable::observe_token token{local->address(),
                                                     caf::default_attachable::link};
  detach(token);
}

void RemoteProxy::count_attached(std::ptrdiff_t change) {
  if (change == 0) {
    return;
  }
  const auto before = attached_.fetch_add(change);
  if (before == 0 || before + change == 0) {
    peer_->update_pin(*this);
  }
}

void RemoteProxy::kill_proxy(caf::execution_unit* ctx, caf::error reason) {
  if (killed_.exchange(true)) {
    return;
  }
  const caf::strong_actor_ptr keep{ctrl()};
  cleanup(std::move(reason), ctx);
  peer_->update_pin(*this);
}

// -- ReplyStage ------------------------------------------------------------------------------------------

ReplyStage::ReplyStage(caf::actor_config& cfg, std::shared_ptr<Peer> peer,
                       caf::strong_actor_ptr requester, caf::actor_addr responder,
                       caf::message_id mid)
    : caf::monitorable_actor(cfg),
      peer_(std::move(peer)),
      requester_(std::move(requester)),
      responder_(std::move(responder)),
      mid_(mid) {}

void ReplyStage::enqueue(caf::mailbox_element_ptr what, caf::execution_unit* ctx) {
  if (answered_.exchange(true)) {
    return;
  }
  if (as_proxy(requester_) == nullptr) {
    // A request of this node that came back by delegation: its answer never crosses the link on
    // which it is pending.
    peer_->forget_everywhere(requester_->id(), mid_);
  }
  requester_->enqueue(
      caf::make_mailbox_element(caf::actor_cast<caf::strong_actor_ptr>(responder_),
                                mid_.response_id(), {}, what->move_content_to_message()),
      ctx);
}

void ReplyStage::on_destroy() {
  if (!answered_.exchange(true)) {
    requester_->enqueue(
        caf::make_mailbox_element(nullptr, mid_.response_id(), {},
                                  caf::make_message(make_caf_error(
                                      ec::may_have_executed,
                                      "the request was dropped without an answer (its receiver "
                                      "ended, or gave up the response promise)"))),
        nullptr);
  }
  requester_.reset();
  caf::monitorable_actor::on_destroy();
}

ReplyStage* as_reply_stage(const caf::strong_actor_ptr& handle) {
  if (!handle) {
    return nullptr;
  }
  auto* actor = handle->get();
  return typeid(*actor) == typeid(ReplyStage) ? static_cast<ReplyStage*>(actor) : nullptr;
}

RemoteProxy* as_proxy(const caf::strong_actor_ptr& handle) {
  // Local actors carry the system's own node id; only others can be proxies.
  if (!handle || handle->nid == handle->home_system->node()) {
    return nullptr;
  }
  // The class is final, so this is all that a dynamic_cast would find out, at a fraction of its cost.
  auto* actor = handle->get();
  return typeid(*actor) == typeid(RemoteProxy) ? static_cast<RemoteProxy*>(actor) : nullptr;
}

}  // namespace troupe::net
