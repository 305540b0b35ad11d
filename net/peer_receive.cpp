// The receiving half of a peer: records become CAF messages.
#include <spdlog/spdlog.h>

#include <caf/make_actor.hpp>
#include <caf/make_message.hpp>
#include <caf/sec.hpp>

#include "net/caf_error.hpp"
#include "net/export_scope.hpp"
#include "net/log_limit.hpp"
#include "net/mesh.hpp"
#include "net/peer.hpp"

namespace troupe::net {

namespace {

LogLimit log_limit;

}  // namespace

void Peer::on_record(const Record& record, CreditToken token) {
  switch (record.header.kind) {
    case RecordKind::message:
      on_message(record, std::move(token));
      return;
    case RecordKind::down:
      on_peer_down(record);
      return;
    case RecordKind::link:
    case RecordKind::unlink:
      on_link_record(record);
      return;
    case RecordKind::release:
      uncount_export(record.header.target, record.header.mid);
      return;
    case RecordKind::claim:
      on_claim(record);
      return;
    case RecordKind::find:
      on_find(record);
      return;
    case RecordKind::found:
      on_found(record);
      return;
    case RecordKind::undeliverable:
      shared_->counters.undeliverable.fetch_add(1, std::memory_order_relaxed);
      log_limit.warn("node {} could not deliver a message to its actor {}: {}", short_string(id_),
                     record.header.source, describe(read_error(record)));
      return;
  }
  shared_->counters.malformed.fetch_add(1, std::memory_order_relaxed);
  log_limit.warn("node {} sent a record of unknown kind {}", short_string(id_),
                 static_cast<int>(record.header.kind));
}

// -- messages ------------------------------------------------------------------------------------------

expected<caf::strong_actor_ptr> Peer::source_of(const Record& record) {
  const auto& header = record.header;
  if ((header.flags & record_flags::source_is_foreign) != 0) {
    if (header.extra > record.body.size()) {
      return fail(ec::malformed, "the source of a message is cut off");
    }
    Decoder decoder{record.body.first(header.extra), nullptr};
    std::uint64_t high = 0;
    std::uint64_t low = 0;
    WireActor actor;
    if (!decoder.value(high) || !decoder.value(low) || !decoder.value(actor.id) ||
        !decoder.value(actor.address)) {
      return fail(ec::malformed, "the source of a message is malformed");
    }
    actor.node = NodeId{high, low};
    if (actor.is_null()) {
      return caf::strong_actor_ptr{};
    }
    ImportScope scope{*this};
    return scope.import_actor(actor);
  }
  if (header.source == 0) {
    return caf::strong_actor_ptr{};
  }
  if ((header.flags & record_flags::source_is_yours) != 0) {
    return local_actor(header.source);
  }
  return import_actor(header.source, true);
}

void Peer::on_message(const Record& record, CreditToken token) {
  const auto& header = record.header;
  // Bits that only this node's own bookkeeping may set are not taken from the wire.
  const caf::message_id mid{header.mid & ~caf::message_id::answered_flag_mask};
  auto source = source_of(record);
  const caf::strong_actor_ptr target = exported(header.target);
  if (!source) {
    reject(record, nullptr, target, source.error());
    return;
  }
  if (mid.is_stream_message()) {
    reject(record, *source, target, {ec::malformed, "stream messages do not cross nodes"});
    return;
  }
  // Only for an actor that this peer may address: it must not settle other people's requests.
  if (mid.is_response() && target) {
    forget_everywhere(header.target, mid);
  }
  if (!target) {
    shared_->counters.no_target.fetch_add(1, std::memory_order_relaxed);
    if (mid.is_request()) {
      respond(*source, mid, caf::make_error(caf::sec::request_receiver_down), nullptr);
    }
    return;
  }
  caf::mailbox_element::forwarding_stack stages;
  caf::strong_actor_ptr stage;
  if (mid.is_request() && *source) {
    caf::actor_config config;
    stage = caf::make_actor<ReplyStage, caf::strong_actor_ptr>(
        shared_->system->next_actor_id(), shared_->system->node(), shared_->system, config,
        shared_from_this(), *source, caf::actor_cast<caf::actor_addr>(target), mid);
    stages.push_back(stage);
  }
  const std::size_t prefix =
      (header.flags & record_flags::source_is_foreign) != 0 ? padded(header.extra) : 0;
  if (prefix > record.body.size()) {
    reject(record, *source, target, {ec::malformed, "the body of a message is cut off"});
    return;
  }
  ImportScope scope{*this};
  auto element = decode_element(*shared_->registry, record.body.subspan(prefix), record.owner,
                                &scope, *source, mid, std::move(stages), std::move(token));
  if (!element) {
    // By way of the stage, which would otherwise answer for a dropped request.
    reject(record, stage ? stage : *source, target, element.error());
    return;
  }
  shared_->counters.messages_received.fetch_add(1, std::memory_order_relaxed);
  target->enqueue(std::move(*element), nullptr);
}

// A message that cannot be delivered is never dropped silently: a requester gets the error, whoever
// waits for a response too, and the sender of an asynchronous message has it in its log and counters.
void Peer::reject(const Record& record, const caf::strong_actor_ptr& source,
                  const caf::strong_actor_ptr& target, const error& reason) {
  const caf::message_id mid{record.header.mid & ~caf::message_id::answered_flag_mask};
  auto& count =
      reason == ec::unknown_type ? shared_->counters.unknown_types : shared_->counters.malformed;
  count.fetch_add(1, std::memory_order_relaxed);
  log_limit.warn("message from node {} to actor {} is not usable: {}", short_string(id_),
                 record.header.target, to_string(reason));
  if (mid.is_stream_message()) {
    return;
  }
  if (mid.is_response()) {
    if (target) {
      target->enqueue(source, mid, caf::make_message(make_caf_error(reason)), nullptr);
    }
  } else if (mid.is_request()) {
    respond(source, mid, make_caf_error(reason), nullptr);
  } else {
    send_error(RecordKind::undeliverable, Lane::control, record.header.target, 0, 0,
               make_caf_error(reason));
  }
}

caf::error Peer::read_error(const Record& record) {
  auto message = decode_message(*shared_->registry, record.body, nullptr, nullptr);
  if (message && message->match_elements<caf::error>()) {
    return message->get_as<caf::error>(0);
  }
  return make_caf_error(ec::malformed, "the reason could not be read");
}

// -- life and death --------------------------------------------------------------------------------------

void Peer::on_peer_down(const Record& record) {
  caf::strong_actor_ptr proxy;
  {
    const std::lock_guard lock{proxies_mutex_};
    const auto it = proxies_.find(record.header.source);
    if (it == proxies_.end()) {
      return;
    }
    proxy = it->second.weak.lock();
    proxies_.erase(it);
  }
  if (proxy) {
    static_cast<RemoteProxy*>(proxy->get())->kill_proxy(nullptr, read_error(record));
  }
}

void Peer::on_link_record(const Record& record) {
  const auto proxy = import_actor(record.header.source, true);
  const auto local = exported(record.header.target);
  auto* remote = static_cast<RemoteProxy*>(proxy->get());
  if (record.header.kind == RecordKind::unlink) {
    if (local) {
      remote->remove_remote_link(local->get());
    }
  } else if (local) {
    remote->add_remote_link(local->get());
  } else {
    send_error(RecordKind::down, Lane::user, record.header.target, 0, 0,
               caf::make_error(caf::exit_reason::unknown));
  }
}

void Peer::on_claim(const Record& record) {
  const auto actor = local_actor(record.header.target);
  if (!actor) {
    send_error(RecordKind::down, Lane::user, record.header.target, 0, 0,
               caf::make_error(caf::exit_reason::unknown));
    return;
  }
  bool fresh = false;
  count_export(actor, fresh);
  if (fresh) {
    attach_notifier(actor);
  }
}

void Peer::on_down(const error& reason) {
  decltype(exports_) exports;
  decltype(proxies_) proxies;
  decltype(pinned_) pinned;
  decltype(pending_) pending;
  {
    const std::lock_guard lock{proxies_mutex_};
    proxies_closed_ = true;
    down_reason_ = {ec::node_unreachable, reason.text()};
    proxies.swap(proxies_);
    pinned.swap(pinned_);
  }
  {
    const std::lock_guard lock{pending_mutex_};
    pending_closed_ = true;
    pending.swap(pending_);
  }
  {
    const std::lock_guard lock{exports_mutex_};
    exports.swap(exports_);
  }
  // Requests first: they fail with the reason before their target's monitors fire.
  for (const auto& [key, request] : pending) {
    respond(request.requester, request.mid,
            make_caf_error(ec::may_have_executed,
                           reason.text() + "; the request may have been executed"),
            nullptr);
  }
  for (const auto& [id, entry] : proxies) {
    if (const auto proxy = entry.weak.lock()) {
      static_cast<RemoteProxy*>(proxy->get())->kill_proxy(nullptr, make_caf_error(down_reason_));
    }
  }
  for (const auto& [id, entry] : exports) {
    stop_watching(entry.actor);
  }
  while (!questions_.empty()) {
    answer(questions_.begin()->first, fail(ec::node_unreachable, reason.text()));
  }
  on_writable(Lane::control);
  on_writable(Lane::user);
  if (const auto mesh = mesh_.lock()) {
    mesh->peer_down(id_, reason);
  }
}

void Peer::on_state(LinkState) {}

// -- names -------------------------------------------------------------------------------------------------

void Peer::find(std::string name, Duration timeout, FindHandler done) {
  executor_.post([self = shared_from_this(), name = std::move(name), timeout,
                  done = std::move(done)]() mutable { self->ask(name, timeout, std::move(done)); });
}

void Peer::ask(std::string name, Duration timeout, FindHandler done) {
  if (link_->state() == LinkState::down) {
    done(fail(ec::node_unreachable, link_->down_reason().text()));
    return;
  }
  const auto number = next_question_++;
  Question& question = questions_[number];
  question.done = std::move(done);
  question.timer = executor_.schedule(timeout, [weak = weak_from_this(), number, name] {
    if (const auto self = weak.lock()) {
      self->answer(number, fail(ec::timeout, "node " + short_string(self->id_) +
                                                 " did not say who \"" + name + "\" is in time"));
    }
  });
  send_system(RecordKind::find, Lane::control, 0, 0, number,
              std::as_bytes(std::span{name.data(), name.size()}));
}

void Peer::answer(std::uint64_t number, expected<caf::strong_actor_ptr> result) {
  const auto it = questions_.find(number);
  if (it == questions_.end()) {
    return;
  }
  const auto question = std::move(it->second);
  questions_.erase(it);
  executor_.cancel(question.timer);
  question.done(std::move(result));
}

void Peer::on_find(const Record& record) {
  const auto mesh = mesh_.lock();
  const std::string name{reinterpret_cast<const char*>(record.body.data()), record.body.size()};
  auto entry =
      mesh ? mesh->published(name) : expected<Mesh::Published>{fail(ec::closed, "shutting down")};
  if (!entry || as_proxy(entry->actor) != nullptr) {
    send_system(RecordKind::found, Lane::control, 0, 0, record.header.mid);
    return;
  }
  // Found travels ahead of what the actor sends afterwards on the same lane.
  ExportScope scope{*this};
  const auto id = scope.count(entry->actor);
  send_system(RecordKind::found, entry->lane, id, 0, record.header.mid, {},
              static_cast<std::uint16_t>(entry->lane));
  scope.commit();
}

void Peer::on_found(const Record& record) {
  const auto& header = record.header;
  if (header.source == 0) {
    answer(header.mid, fail(ec::not_found,
                            "node " + short_string(id_) + " has published no actor of this name"));
    return;
  }
  auto actor = import_actor(header.source, true);
  if (header.extra == static_cast<std::uint16_t>(Lane::control)) {
    // Only a published control actor is reached over the control lane.
    static_cast<RemoteProxy*>(actor->get())->set_lane(Lane::control);
  }
  answer(header.mid, std::move(actor));
}

}  // namespace troupe::net
