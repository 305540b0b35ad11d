#include "runtime/agent.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "net/caf_error.hpp"
#include "runtime/actor_ref.hpp"
#include "runtime/agent_actor.hpp"

namespace troupe {

std::string_view to_string(AgentPhase phase) noexcept {
  switch (phase) {
    case AgentPhase::seeking:
      return "seeking";
    case AgentPhase::joining:
      return "joining";
    case AgentPhase::member:
      return "member";
    case AgentPhase::left:
      return "left";
    case AgentPhase::refused:
      return "refused";
  }
  return "?";
}

bool AgentShared::allows(const NodeId& node) const {
  const std::lock_guard lock{mutex};
  return view.live().empty() || view.find(node) != nullptr || view.broker().broker == node;
}

std::shared_ptr<const View> AgentShared::shared_view() const {
  const std::lock_guard lock{mutex};
  if (!copy) {
    copy = std::make_shared<const View>(view);
  }
  return copy;
}

// -- the facade --------------------------------------------------------------------------------------------

std::shared_ptr<Agent> Agent::start(caf::actor_system& system, net::Mesh& mesh, AgentConfig config,
                                    AgentHooks hooks) {
  std::shared_ptr<Agent> agent{new Agent};
  agent->shared_ = std::make_shared<AgentShared>();
  const bool detached = config.detached;
  agent->actor_ = caf::actor_cast<caf::actor>(
      detached ? system.spawn<AgentActor, caf::detached>(std::ref(mesh), std::move(config),
                                                         std::move(hooks), agent->shared_)
               : system.spawn<AgentActor>(std::ref(mesh), std::move(config), std::move(hooks),
                                          agent->shared_));
  mesh.publish(agent_actor_name, agent->actor_, net::Lane::control);
  const auto weak = caf::actor_cast<caf::weak_actor_ptr>(agent->actor_);
  net::MeshEvents events;
  events.on_verdict = [weak](const NodeId& peer, net::HeartbeatVerdict verdict,
                             const std::string& reason) {
    if (const auto self = weak.lock()) {
      auto* actor = static_cast<AgentActor*>(self->get());
      caf::anon_send(caf::actor_cast<caf::actor>(self), AgentCall{[actor, peer, verdict, reason] {
                       actor->on_verdict(peer, verdict, reason);
                     }});
    }
  };
  mesh.add_listener(std::move(events));
  if (auto* heartbeats = mesh.heartbeats()) {
    heartbeats->set_allow(
        [shared = agent->shared_](const NodeId& node) { return shared->allows(node); });
  }
  return agent;
}

Agent::~Agent() { stop(); }

void Agent::stop() {
  if (actor_) {
    auto* actor = static_cast<AgentActor*>(caf::actor_cast<caf::abstract_actor*>(actor_));
    caf::anon_send(actor_, AgentCall{[actor] { actor->quit(); }});
  }
}

std::shared_ptr<const View> Agent::view() const { return shared_->shared_view(); }

AgentStatus Agent::status() const {
  const std::lock_guard lock{shared_->mutex};
  auto status = shared_->status;
  status.lease = status.lease && actor_->home_system().clock().now() < shared_->lease_until;
  return status;
}

bool Agent::ready() const {
  const auto now = status();
  return now.phase == AgentPhase::member && !now.draining;
}

namespace {

AgentActor* actor_of(const caf::actor& handle) {
  return static_cast<AgentActor*>(caf::actor_cast<caf::abstract_actor*>(handle));
}

void call(const caf::actor& agent, std::function<void(AgentActor&)> fn) {
  auto* actor = actor_of(agent);
  caf::anon_send(agent, AgentCall{[actor, fn = std::move(fn)] { fn(*actor); }});
}

}  // namespace

void Agent::on_view(std::function<void(const std::shared_ptr<const View>&)> fn) {
  caf::anon_send(actor_, AgentCall{[shared = shared_, fn = std::move(fn)] {
                   shared->on_view.push_back(fn);
                   fn(shared->shared_view());
                 }});
}

void Agent::host(Hosting hosting, std::function<void(expected<DirectoryEntry>)> done) {
  call(actor_, [hosting = std::move(hosting), done = std::move(done)](AgentActor& self) {
    self.host(hosting, done);
  });
}

void Agent::unhost(const std::string& path) {
  call(actor_, [path](AgentActor& self) { self.unhost(path); });
}

void Agent::resolve(const std::string& path, net::Duration timeout,
                    std::function<void(expected<caf::actor>)> done) {
  call(actor_, [path, timeout, done = std::move(done)](AgentActor& self) {
    self.resolve(path, timeout, done);
  });
}

caf::actor Agent::ref(const std::string& path) {
  auto ref = make_actor_ref(actor_, path);
  call(actor_, [path, weak = caf::actor_cast<caf::weak_actor_ptr>(ref)](AgentActor& self) {
    self.add_ref(path, weak);
  });
  return ref;
}

void Agent::drain(const std::string& reason, Milliseconds deadline) {
  call(actor_, [reason, deadline](AgentActor& self) { self.start_drain(reason, deadline, false); });
}

// -- plumbing of the actor ---------------------------------------------------------------------------------

AgentActor::AgentActor(caf::actor_config& cfg, net::Mesh& mesh, AgentConfig config,
                       AgentHooks hooks, std::shared_ptr<AgentShared> shared)
    : caf::event_based_actor(cfg),
      mesh_(mesh),
      config_(std::move(config)),
      hooks_(std::move(hooks)),
      shared_(std::move(shared)),
      random_(config_.seed != 0 ? config_.seed : config_.self.id.low(), 0x4147U),
      times_(config_.times) {
  set_down_handler([this](caf::down_msg& down) { on_actor_down(down); });
  set_default_handler(caf::drop);
  // Peers can send anything to a published actor; neither an error nor an exit message of theirs ends it.
  set_error_handler([](caf::error&) {});
  set_exit_handler([](caf::exit_msg&) {});
}

caf::behavior AgentActor::make_behavior() {
  seek("the cluster");
  return control_handlers().or_else(relay_handlers());
}

void AgentActor::on_exit() {
  broker_ = nullptr;
  for (auto& [path, hosted] : hosted_) {
    mesh_.unpublish(path);
  }
  hosted_.clear();
  ending_.clear();
  for (auto& [path, entry] : std::exchange(paths_, {})) {
    for (const auto& one : entry.waiting) {
      one.done(fail(ec::closed, "this node stops"));
    }
    for (const auto& ref : entry.refs) {
      if (const auto strong = ref.lock()) {
        static_cast<RefProxy*>(strong->get())
            ->kill_proxy(nullptr, make_caf_error(ec::closed, "this node stops"));
      }
    }
  }
  hooks_ = {};
  config_.broker.reset();
  config_.discovery.reset();
}

std::int64_t AgentActor::wall_ms() const {
  if (config_.wall_ms) {
    return config_.wall_ms();
  }
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void AgentActor::later(net::Duration delay, std::function<void()> fn) {
  delayed_send(this, std::max(delay, net::Duration::zero()), AgentCall{std::move(fn)});
}

void AgentActor::set_phase(AgentPhase phase) {
  phase_ = phase;
  publish_status();
}

void AgentActor::publish_status() {
  const std::lock_guard lock{shared_->mutex};
  auto& status = shared_->status;
  status.phase = phase_;
  status.incarnation = incarnation_;
  status.draining = draining_;
  status.lease = lease_;
  shared_->lease_until = config_.broker ? net::TimePoint::max() : lease_until_;
  status.broker = broker_info_;
  status.waiting_for = phase_ == AgentPhase::member ? std::string{} : waiting_for_;
  status.fenced = fenced_;
  status.reconnects = reconnects_;
  status.hosted = hosted_.size();
  status.resolved = paths_.size();
}

void AgentActor::tell_view() {
  {
    const std::lock_guard lock{shared_->mutex};
    shared_->status.epoch = shared_->view.epoch();
    shared_->status.members = shared_->view.live().size();
  }
  if (shared_->on_view.empty()) {
    return;
  }
  const auto fresh = shared_->shared_view();
  for (const auto& fn : shared_->on_view) {
    fn(fresh);
  }
}

caf::message_handler AgentActor::control_handlers() {
  return {
      [](const AgentCall& call) { call.fn(); },
      [this](const ViewDelta& delta) {
        if (from_broker()) {
          on_delta(delta);
        }
      },
      [this](const Fenced& fenced) {
        if (from_broker() && fenced.node == config_.self.id && fenced.incarnation == incarnation_ &&
            incarnation_ != 0 && fenced.term >= broker_info_.term) {
          fence(fenced.reason, fenced.final);
        }
      },
      [this](const DrainOrder& order) {
        if (from_broker() && order.incarnation == incarnation_) {
          start_drain(order.reason, Milliseconds{order.deadline_ms}, true);
        }
      },
      [this](const DirectoryUpdate& update) {
        if (from_broker() && update.term >= broker_info_.term) {
          for (const auto& entry : update.entries) {
            on_entry(entry);
          }
        }
      },
      [this](const WhoIsBroker&) {
        return WhoIsReply{broker_info_, phase_ == AgentPhase::member};
      },
      [this](const BrokerHere& here) {
        if (sender_node() == here.broker.broker) {
          on_broker_here(here.broker);
        }
        return WhoIsReply{broker_info_, phase_ == AgentPhase::member};
      },
  };
}

NodeId AgentActor::sender_node() {
  const auto from = caf::actor_cast<caf::actor>(current_sender());
  return from ? mesh_.node_of(from) : NodeId{};
}

/// What only the broker may say is believed only of its process.
bool AgentActor::from_broker() {
  return broker_info_.broker && sender_node() == broker_info_.broker;
}

/// Commands that any node takes and the broker answers.
caf::message_handler AgentActor::relay_handlers() {
  const auto relay = [this](const auto& request) -> caf::result<caf::message> {
    auto promise = make_response_promise();
    if (!broker_) {
      promise.deliver(make_caf_error(ec::node_unreachable,
                                     "this node does not hear the broker now: waiting for " +
                                         waiting_for_ + "; ask the head or try again"));
    } else {
      promise.delegate(broker_, request);
    }
    return caf::delegated<caf::message>{};
  };
  return {
      [relay](const DrainRequest& request) { return relay(request); },
      [relay](const EventsRequest& request) { return relay(request); },
  };
}

void AgentActor::on_actor_down(const caf::down_msg& down) {
  if (broker_ && down.source == broker_.address()) {
    broker_lost(describe(down.reason));
    return;
  }
  if (on_ending_down(down.source)) {
    return;
  }
  for (auto it = hosted_.begin(); it != hosted_.end(); ++it) {
    if (it->second.hosting.actor.address() == down.source) {
      const auto entry = it->second.entry;
      mesh_.unpublish(it->first);
      hosted_.erase(it);
      release(entry);
      drain_progress();
      return;
    }
  }
  for (auto& [path, entry] : paths_) {
    if (entry.actor && entry.actor.address() == down.source) {
      set_target(path, entry, nullptr);
      if (!entry.waiting.empty() || !entry.refs.empty()) {
        // The path may already be served by a new incarnation.
        entry.known = false;
        ask_directory(path);
      }
    }
  }
}

}  // namespace troupe
