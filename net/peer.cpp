// The sending half of a peer, and its tables.
#include "net/peer.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>

#include <caf/make_actor.hpp>
#include <caf/make_message.hpp>
#include <caf/sec.hpp>
#include <caf/system_messages.hpp>

#include "net/caf_error.hpp"
#include "net/export_scope.hpp"
#include "net/mesh.hpp"

namespace troupe::net {

namespace {

// Marks our attachables among CAF's own token types.
constexpr std::size_t notifier_token = 0x74726f75;  // "trou"

// Tells a peer that an actor it may address has ended.
class DownNotifier final : public caf::attachable {
 public:
  DownNotifier(std::weak_ptr<Peer> peer, const Peer* key, std::uint64_t id)
      : peer_(std::move(peer)), key_(key), id_(id) {}

  void actor_exited(const caf::error& reason, caf::execution_unit*) override {
    if (const auto peer = peer_.lock()) {
      peer->actor_ended(id_, reason);
    }
  }

  bool matches(const token& what) override {
    return what.subtype == notifier_token && what.ptr == key_;
  }

 private:
  std::weak_ptr<Peer> peer_;
  const Peer* key_;
  std::uint64_t id_;
};

caf::node_id make_caf_node(const NodeId& id) {
  caf::node_id::default_data::host_id_type host{};
  const std::array<std::uint64_t, 2> words{id.high(), id.low()};
  std::memcpy(host.data(), words.data(), sizeof(words));
  // CAF takes process id 0 for "invalid".
  return caf::make_node_id(static_cast<std::uint32_t>(id.low()) | 1U, host);
}

// What keeps a large message alive until the peer has acknowledged it.
struct Payload {
  EncodedBody body;
  std::vector<std::byte> prefix;
  caf::mailbox_element_ptr element;
};

}  // namespace

bool MeshShared::is_control(std::uint64_t id) const {
  if (!any_control.load(std::memory_order_relaxed)) {
    return false;
  }
  const std::shared_lock lock{control_mutex};
  return control_actors.count(id) > 0;
}

Peer::Peer(std::shared_ptr<MeshShared> shared, std::weak_ptr<Mesh> mesh, Executor& executor,
           std::shared_ptr<Link> link)
    : shared_(std::move(shared)),
      mesh_(std::move(mesh)),
      executor_(executor),
      link_(std::move(link)),
      id_(link_->peer()),
      caf_node_(make_caf_node(id_)) {}

Peer::~Peer() = default;

// -- exports -------------------------------------------------------------------------------------------

void Peer::count_export(const caf::strong_actor_ptr& actor, bool& fresh) {
  const std::lock_guard lock{exports_mutex_};
  Export& entry = exports_[actor->id()];
  if (!entry.actor) {
    entry.actor = actor;
    fresh = true;
  }
  ++entry.sent;
}

void Peer::uncount_export(std::uint64_t id, std::uint64_t count) {
  caf::strong_actor_ptr dropped;
  {
    const std::lock_guard lock{exports_mutex_};
    const auto it = exports_.find(id);
    if (it == exports_.end()) {
      return;
    }
    it->second.sent -= std::min(it->second.sent, count);
    if (it->second.sent > 0) {
      return;
    }
    dropped = std::move(it->second.actor);
    exports_.erase(it);
  }
  stop_watching(dropped);
}

// The actor may not be addressed any more: nobody has to be told of its end.
void Peer::stop_watching(const caf::strong_actor_ptr& actor) {
  actor->get()->detach(caf::attachable::token{notifier_token, this});
}

void Peer::attach_notifier(const caf::strong_actor_ptr& actor) {
  actor->get()->attach(caf::attachable_ptr{new DownNotifier(weak_from_this(), this, actor->id())});
}

void Peer::actor_ended(std::uint64_t id, const caf::error& reason) {
  caf::strong_actor_ptr dropped;
  {
    const std::lock_guard lock{exports_mutex_};
    const auto it = exports_.find(id);
    if (it == exports_.end()) {
      return;
    }
    dropped = std::move(it->second.actor);
    exports_.erase(it);
  }
  send_error(RecordKind::down, lane_of_local(id), id, 0, 0, reason);
}

caf::strong_actor_ptr Peer::exported(std::uint64_t id) const {
  const std::lock_guard lock{exports_mutex_};
  const auto it = exports_.find(id);
  return it == exports_.end() ? nullptr : it->second.actor;
}

caf::strong_actor_ptr Peer::local_actor(std::uint64_t id) const {
  if (auto actor = exported(id)) {
    return actor;
  }
  const auto mesh = mesh_.lock();
  return mesh ? mesh->find_exported(id) : nullptr;
}

std::size_t Peer::export_count() const {
  const std::lock_guard lock{exports_mutex_};
  return exports_.size();
}

// -- proxies -------------------------------------------------------------------------------------------

caf::strong_actor_ptr Peer::import_actor(std::uint64_t id, bool from_peer) {
  caf::strong_actor_ptr result;
  bool fresh = false;
  bool closed = false;
  {
    const std::lock_guard lock{proxies_mutex_};
    closed = proxies_closed_;
    ProxyEntry& entry = proxies_[id];
    if (entry.proxy != nullptr) {
      result = entry.weak.lock();
    }
    if (!result) {
      caf::actor_config config;
      result = caf::make_actor<RemoteProxy, caf::strong_actor_ptr>(id, caf_node_, shared_->system,
                                                                   config, shared_from_this());
      entry.proxy = static_cast<RemoteProxy*>(result->get());
      entry.weak = caf::actor_cast<caf::weak_actor_ptr>(result);
      fresh = true;
    }
    if (from_peer || fresh) {
      ++entry.proxy->received;
    }
    if (closed) {
      proxies_.erase(id);
    }
  }
  if (closed) {
    static_cast<RemoteProxy*>(result->get())->kill_proxy(nullptr, make_caf_error(down_reason_));
  } else if (fresh && !from_peer) {
    send_system(RecordKind::claim, Lane::user, 0, id, 0);
  }
  return result;
}

void Peer::proxy_destroyed(RemoteProxy& proxy) {
  {
    const std::lock_guard lock{proxies_mutex_};
    const auto it = proxies_.find(proxy.id());
    if (it != proxies_.end() && it->second.proxy == &proxy) {
      proxies_.erase(it);
    }
  }
  if (!proxy.killed()) {
    send_system(RecordKind::release, proxy.lane(), 0, proxy.id(), proxy.received);
  }
}

void Peer::update_pin(RemoteProxy& proxy) {
  caf::strong_actor_ptr dropped;
  const std::lock_guard lock{proxies_mutex_};
  if (proxy.attached_.load() > 0 && !proxy.killed() && !proxies_closed_) {
    pinned_.emplace(&proxy, caf::strong_actor_ptr{proxy.ctrl()});
  } else if (const auto it = pinned_.find(&proxy); it != pinned_.end()) {
    dropped = std::move(it->second);
    pinned_.erase(it);
  }
}

std::size_t Peer::proxy_count() const {
  const std::lock_guard lock{proxies_mutex_};
  return proxies_.size();
}

// -- pending requests ----------------------------------------------------------------------------------

bool Peer::add_pending(const caf::strong_actor_ptr& sender, caf::message_id mid) {
  const std::lock_guard lock{pending_mutex_};
  if (pending_closed_) {
    return false;
  }
  pending_.insert_or_assign(PendingKey{sender->id(), mid.request_id().integer_value()},
                            Pending{sender, mid});
  return true;
}

bool Peer::forget_pending(std::uint64_t requester, caf::message_id mid) {
  Pending dropped;
  const std::lock_guard lock{pending_mutex_};
  const auto it = pending_.find(PendingKey{requester, mid.request_id().integer_value()});
  if (it == pending_.end()) {
    return false;
  }
  dropped = std::move(it->second);
  pending_.erase(it);
  return true;
}

void Peer::forget_everywhere(std::uint64_t requester, caf::message_id mid) {
  if (!forget_pending(requester, mid)) {
    if (const auto mesh = mesh_.lock()) {
      mesh->forget_pending(requester, mid);
    }
  }
}

std::size_t Peer::pending_count() const {
  const std::lock_guard lock{pending_mutex_};
  return pending_.size();
}

void Peer::respond(const caf::strong_actor_ptr& requester, caf::message_id mid, caf::error reason,
                   caf::execution_unit* ctx) const {
  if (requester) {
    requester->enqueue(nullptr, mid.response_id(), caf::make_message(std::move(reason)), ctx);
  }
}

// -- sending -------------------------------------------------------------------------------------------

Lane Peer::lane_of_local(std::uint64_t id) const {
  return shared_->is_control(id) ? Lane::control : Lane::user;
}

Lane Peer::lane_of(const RemoteProxy& target, const caf::strong_actor_ptr& sender,
                   caf::message_id mid) const {
  if (target.lane() == Lane::control || mid.is_urgent_message()) {
    return Lane::control;
  }
  return sender ? lane_of_local(sender->id()) : Lane::user;
}

void Peer::name_source(const caf::strong_actor_ptr& sender, ExportScope& scope,
                       RecordHeader& header, std::vector<std::byte>& prefix) {
  if (!sender) {
    return;
  }
  const RemoteProxy* proxy = as_proxy(sender);
  if (proxy == nullptr) {
    header.source = scope.count(sender);
  } else if (proxy->peer()->id() == id_) {
    header.source = sender->id();
    header.flags |= record_flags::source_is_yours;
  } else if (auto name = scope.export_actor(sender)) {
    EncodedBody encoded;
    Encoder encoder{encoded, {}, false};
    encoder.value(name->node.high());
    encoder.value(name->node.low());
    encoder.value(name->id);
    encoder.value(name->address);
    prefix = encoded.flatten();
    header.flags |= record_flags::source_is_foreign;
    header.extra = static_cast<std::uint16_t>(prefix.size());
    prefix.resize(padded(prefix.size()));
  }
}

// Who sends a message: for a request that was delegated to here, not always its sender. It carries a reply
// stage. Back on the node it came from, that node answers for it; towards a third node the stage itself asks,
// so that the request fails here when that node is lost, and the answer passes through.
caf::strong_actor_ptr Peer::sender_of(const caf::mailbox_element& what, error& problem) const {
  if (what.stages.empty()) {
    return what.sender;
  }
  ReplyStage* stage = as_reply_stage(what.stages.back());
  if (stage == nullptr || what.stages.size() > 1) {
    problem = {ec::invalid_argument, "composed actors do not work across nodes"};
    return what.sender;
  }
  const RemoteProxy* origin = as_proxy(what.sender);
  if (origin != nullptr && origin->peer()->id() == id_) {
    stage->hand_over();
    return what.sender;
  }
  return what.stages.back();
}

void Peer::send_message(RemoteProxy& target, caf::mailbox_element_ptr what,
                        caf::execution_unit* ctx) {
  const auto& content = what->content();
  const caf::message_id mid = what->mid;
  error problem;
  const caf::strong_actor_ptr sender = sender_of(*what, problem);
  if (problem) {
    not_encoded(target, sender, mid, problem, ctx);
    return;
  }
  const bool from_here = sender && as_proxy(sender) == nullptr;
  if (from_here && content.size() == 1 && content.match_element<caf::exit_msg>(0) &&
      sender->get()->getf(caf::abstract_actor::is_cleaned_up_flag)) {
    // An actor that has ended sends this to those it is linked to; the DOWN record tells them. One that
    // lives has called send_exit.
    return;
  }
  ExportScope scope{*this};
  RecordHeader header;
  header.kind = RecordKind::message;
  header.target = target.id();
  header.mid = mid.integer_value();
  std::vector<std::byte> prefix;
  name_source(sender, scope, header, prefix);
  thread_local EncodedBody body;
  body.clear();
  if (auto err = encode_message(*shared_->registry, content, &scope, body)) {
    scope.rollback();
    not_encoded(target, sender, mid, err, ctx);
    return;
  }
  const bool pending = mid.is_request() && from_here;
  if (pending && !add_pending(sender, mid)) {
    scope.rollback();
    not_sent(target, sender, mid, SendResult::down, ctx);
    return;
  }
  const auto force = mid.is_response() ? SendForce::response : SendForce::none;
  const auto result = send_body(lane_of(target, sender, mid), header, body, prefix, what, force);
  if (result == SendResult::ok) {
    scope.commit();
    shared_->counters.messages_sent.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  scope.rollback();
  if (!pending || forget_pending(sender->id(), mid)) {
    not_sent(target, sender, mid, result, ctx);
  }
}

SendResult Peer::send_body(Lane lane, const RecordHeader& header, EncodedBody& body,
                           std::span<const std::byte> prefix, caf::mailbox_element_ptr& what,
                           SendForce force) {
  const std::size_t size = prefix.size() + body.size();
  if (size < link_->large_record() && body.externals.empty()) {
    const std::array<ConstBuffer, 2> pieces{prefix, ConstBuffer{body.inline_bytes}};
    const std::size_t skip = prefix.empty() ? 1 : 0;
    return link_->send(lane, header, std::span{pieces}.subspan(skip), nullptr, force);
  }
  // The link refers to the parts until they are acknowledged.
  auto payload = std::make_shared<Payload>();
  payload->body = std::move(body);
  payload->prefix.assign(prefix.begin(), prefix.end());
  payload->element = std::move(what);
  std::vector<ConstBuffer> pieces;
  pieces.reserve(payload->body.externals.size() * 2 + 2);
  if (!payload->prefix.empty()) {
    pieces.emplace_back(payload->prefix);
  }
  payload->body.for_each_part([&](std::span<const std::byte> part) { pieces.push_back(part); });
  return link_->send(lane, header, pieces, std::move(payload), force);
}

void Peer::not_encoded(RemoteProxy& target, const caf::strong_actor_ptr& sender,
                       caf::message_id mid, const error& reason, caf::execution_unit* ctx) {
  const auto count =
      reason == ec::unknown_type ? &shared_->counters.unknown_types : &shared_->counters.malformed;
  count->fetch_add(1, std::memory_order_relaxed);
  if (mid.is_request()) {
    respond(sender, mid, make_caf_error(reason), ctx);
  } else if (mid.is_response()) {
    // The requester must hear something: the error instead of the value.
    send_error(RecordKind::message, lane_of(target, sender, mid), 0, target.id(),
               mid.integer_value(), make_caf_error(reason));
  } else {
    spdlog::error("message to actor {} on node {} was not sent: {}", target.id(), short_string(id_),
                  to_string(reason));
  }
}

void Peer::not_sent(RemoteProxy& target, const caf::strong_actor_ptr& sender, caf::message_id mid,
                    SendResult result, caf::execution_unit* ctx) {
  caf::error reason;
  switch (result) {
    case SendResult::would_block:
      shared_->counters.refused.fetch_add(1, std::memory_order_relaxed);
      reason = make_caf_error(ec::would_block, "the send queue towards node " + short_string(id_) +
                                                   " is full; wait with Mesh::when_writable");
      break;
    case SendResult::too_large:
      reason = make_caf_error(ec::limit_exceeded, "the message exceeds the largest that node " +
                                                      short_string(id_) +
                                                      " accepts; send it as an object or in parts");
      break;
    default:
      reason = make_caf_error(ec::node_unreachable, link_->down_reason().text());
  }
  if (mid.is_request()) {
    respond(sender, mid, std::move(reason), ctx);
  } else if (mid.is_response() && result != SendResult::down) {
    send_error(RecordKind::message, Lane::control, 0, target.id(), mid.integer_value(), reason);
  } else if (result != SendResult::down) {
    // At most one line a second: the sender is told through `writable` and the counters.
    const auto now = executor_.now().time_since_epoch().count();
    auto next = next_refusal_log_.load(std::memory_order_relaxed);
    if (now >= next && next_refusal_log_.compare_exchange_strong(next, now + 1'000'000'000)) {
      spdlog::warn("asynchronous message to actor {} on node {} dropped: {}", target.id(),
                   short_string(id_), describe(reason));
    }
  }
}

void Peer::send_system(RecordKind kind, Lane lane, std::uint64_t source, std::uint64_t target,
                       std::uint64_t mid, std::span<const std::byte> body, std::uint16_t extra) {
  RecordHeader header;
  header.kind = kind;
  header.source = source;
  header.target = target;
  header.mid = mid;
  header.extra = extra;
  const ConstBuffer piece{body};
  link_->send(lane, header, {&piece, 1}, nullptr, SendForce::system);
}

void Peer::send_error(RecordKind kind, Lane lane, std::uint64_t source, std::uint64_t target,
                      std::uint64_t mid, const caf::error& reason) {
  EncodedBody body;
  const auto content = caf::make_message(reason);
  if (encode_message(*shared_->registry, content.content(), nullptr, body, false)) {
    body.clear();
  }
  send_system(kind, lane, source, target, mid, body.inline_bytes);
}

void Peer::post_link(RemoteProxy& target, caf::strong_actor_ptr local, RecordKind kind) {
  if (link_->state() == LinkState::down) {
    return;
  }
  executor_.post([weak = weak_from_this(), local = std::move(local), id = target.id(), kind] {
    const auto self = weak.lock();
    if (!self || as_proxy(local) != nullptr) {
      return;
    }
    ExportScope scope{*self};
    self->send_system(kind, self->lane_of_local(local->id()), scope.count(local), id, 0);
    scope.commit();
  });
}

void Peer::when_writable(Lane lane, std::function<void()> fn) {
  const auto index = static_cast<std::size_t>(lane);
  {
    const std::lock_guard lock{writable_mutex_};
    waiting_[index].push_back(std::move(fn));
  }
  if (link_->request_writable(lane) || link_->state() == LinkState::down) {
    on_writable(lane);
  }
}

void Peer::on_writable(Lane lane) {
  std::vector<std::function<void()>> ready;
  {
    const std::lock_guard lock{writable_mutex_};
    ready.swap(waiting_[static_cast<std::size_t>(lane)]);
  }
  for (const auto& fn : ready) {
    fn();
  }
}

}  // namespace troupe::net
