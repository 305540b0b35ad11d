#include "supervision/broker.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>

#include "net/caf_error.hpp"
#include "net/peer.hpp"
#include "net/proxy.hpp"

namespace troupe {

/// Of types that no peer can send.
struct BrokerStop {};
struct BrokerFlush {};
struct BrokerTick {};
struct BrokerBroadcast {};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::BrokerStop)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::BrokerFlush)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::BrokerTick)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::BrokerBroadcast)

namespace troupe {

namespace {

/// Changes wait this long per member before all are told: a crowd that joins costs each member some messages
/// instead of one per newcomer. 20 ms with a thousand members.
constexpr std::chrono::microseconds broadcast_delay_per_member{20};
constexpr std::chrono::milliseconds shortest_broadcast_delay{1};

std::int64_t system_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

struct BrokerActorState {
  static constexpr const char* name = "broker";

  BrokerOptions options;
  std::unique_ptr<BrokerCore> core;
  std::shared_ptr<BrokerCounters> counters;
  /// The agents of members, as they last spoke to us.
  std::unordered_map<NodeId, caf::actor> agents;
  /// Answers that wait for the batch to be durable.
  std::vector<std::function<void()>> answers;
  bool flush_due = false;
  /// Stored changes of the view of which the members have not been told.
  std::vector<ViewDelta> untold;
  bool broadcast_due = false;
  std::optional<net::TimePoint> tick_at;
  bool ended = false;
};

class BrokerActor : public caf::stateful_actor<BrokerActorState> {
 public:
  using Base = caf::stateful_actor<BrokerActorState>;

  BrokerActor(caf::actor_config& cfg, BrokerOptions options, std::unique_ptr<BrokerCore> core,
              std::shared_ptr<BrokerCounters> counters)
      : Base(cfg) {
    state.options = std::move(options);
    state.core = std::move(core);
    state.counters = std::move(counters);
    // An agent that goes is a matter of the failure detector.
    set_down_handler([](caf::scheduled_actor*, caf::down_msg&) {});
    set_default_handler(caf::drop);
    // Peers can send anything to a published actor; neither an error nor an exit message of theirs ends it.
    set_error_handler([](caf::error&) {});
    // The process must not go on without its broker, whatever ended it.
    attach_functor([tell = state.options.on_end, told = told_](const caf::error& reason) {
      if (tell && !*told && reason && reason != caf::exit_reason::user_shutdown) {
        tell({ec::actor_down,
              "the broker has ended unexpectedly (" + describe(reason) + "); this head ends"});
      }
    });
    set_exit_handler([](caf::exit_msg&) {});
  }

  caf::behavior make_behavior() override {
    changed();  // what the start of the term has changed
    return caf::message_handler{member_handlers()}.or_else(directory_handlers());
  }

 private:
  caf::message_handler member_handlers();
  caf::message_handler directory_handlers();

  Moment moment() const {
    return {clock().now(), state.options.wall_ms ? state.options.wall_ms() : system_ms()};
  }

  /// Members speak for themselves only: a confused one must not end, drain or rob another.
  bool sent_by(const NodeId& node) {
    const auto& from = current_sender();
    if (!from) {
      return false;
    }
    const auto* proxy = net::as_proxy(from);
    return node == (proxy != nullptr ? proxy->peer()->id() : state.core->info().broker);
  }

  static std::string not_yours(const NodeId& node) {
    return "the request speaks for node " + short_string(node) + " but comes from another one";
  }

  caf::response_promise refuse(const NodeId& node) {
    auto promise = make_response_promise();
    promise.deliver(make_caf_error(ec::unauthorized, not_yours(node)));
    return promise;
  }

  void remember(const NodeId& node) {
    if (auto agent = caf::actor_cast<caf::actor>(current_sender())) {
      state.agents[node] = std::move(agent);
    }
  }

  /// Answers `reply` once everything so far is durable.
  template <class T>
  caf::response_promise answer(T reply) {
    auto promise = make_response_promise();
    state.answers.push_back(
        [promise, reply = std::move(reply)]() mutable { promise.deliver(std::move(reply)); });
    changed();
    return promise;
  }

  void changed();
  void flush();
  void tell_members(const BrokerBatch& batch);
  void schedule_broadcast();
  void broadcast();
  void tell_directory(const std::vector<DirectoryEntry>& entries);
  void arm();
  void end(const error& reason);

  /// Outlives the state, which is gone when the actor's end is told.
  std::shared_ptr<bool> told_ = std::make_shared<bool>(false);

  template <class T>
  void tell(const NodeId& node, T message) {
    const auto found = state.agents.find(node);
    if (found != state.agents.end()) {
      ++state.counters->messages_sent;
      send(found->second, std::move(message));
    }
  }
};

caf::message_handler BrokerActor::member_handlers() {
  return {
      [this](const JoinRequest& request) {
        JoinReply reply;
        if (sent_by(request.member.id)) {
          reply = state.core->join(request, moment());
        } else {
          reply.code = ec::unauthorized;
          reply.text = not_yours(request.member.id);
        }
        if (reply.code == ec::none) {
          remember(request.member.id);
          ++state.counters->snapshots_sent;
        } else if (reply.code != ec::session_lost) {
          ++state.counters->refused_joins;
          spdlog::warn("broker: refused node {} \"{}\" at {}: {}", short_string(request.member.id),
                       request.member.name, request.member.address, reply.text);
        }
        return answer(std::move(reply));
      },
      [this](const SyncRequest& request) {
        if (!sent_by(request.node)) {
          return refuse(request.node);
        }
        SyncReply reply = state.core->sync(request, moment());
        if (reply.code == ec::none) {
          remember(request.node);
          state.counters->snapshots_sent += reply.snapshot.size();
        }
        return answer(std::move(reply));
      },
      [this](const Observation& observation) {
        if (sent_by(observation.observer)) {
          state.core->observe(observation, moment());
          changed();
        }
      },
      [this](const DrainRequest& request) { return answer(state.core->drain(request, moment())); },
      [this](const LeaveRequest& request) {
        return answer(sent_by(request.node)
                          ? state.core->leave(request, moment())
                          : CommandReply{ec::unauthorized, not_yours(request.node), request.node});
      },
      [this](const EventsRequest& request) -> caf::result<EventsReply> {
        constexpr std::uint32_t most = 10'000;
        auto events = state.options.store->events(request.after_seq, std::min(request.limit, most));
        if (!events) {
          return make_caf_error(events.error());
        }
        return EventsReply{std::move(*events)};
      },
      [this](BrokerStop) { quit(); },
      [this](BrokerFlush) {
        state.flush_due = false;
        flush();
      },
      [this](BrokerBroadcast) {
        state.broadcast_due = false;
        broadcast();
      },
      [this](BrokerTick) {
        state.tick_at.reset();
        state.core->tick(moment());
        changed();
      },
  };
}

caf::message_handler BrokerActor::directory_handlers() {
  return {
      [this](const ClaimRequest& request) {
        return answer(sent_by(request.node)
                          ? state.core->claim(request, moment())
                          : ClaimReply{ec::unauthorized, not_yours(request.node), 0, {}});
      },
      [this](const ReleaseRequest& request) {
        return answer(sent_by(request.node)
                          ? state.core->release(request, moment())
                          : CommandReply{ec::unauthorized, not_yours(request.node), request.node});
      },
      [this](const ResolveRequest& request) {
        if (!sent_by(request.node)) {
          return refuse(request.node);
        }
        return answer(state.core->resolve(request, moment()));
      },
      [this](const WhoIsBroker&) {
        return WhoIsReply{state.core->info(), true};
      },
  };
}

void BrokerActor::changed() {
  if (state.core->outdated()) {
    end({ec::conflict, "a newer broker runs cluster \"" + state.core->info().cluster +
                           "\" from another copy of its data; this head ends"});
    return;
  }
  if (!state.flush_due && (state.core->has_changes() || !state.answers.empty())) {
    state.flush_due = true;
    // Behind what is already in the mailbox, so that one transaction serves a crowd.
    send(this, BrokerFlush{});
  }
  arm();
}

void BrokerActor::flush() {
  if (state.ended) {
    return;
  }
  const BrokerBatch batch = state.core->take_batch();
  if (!batch.empty()) {
    if (auto stored = state.options.store->commit(batch); !stored) {
      end({stored.error().code(),
           "cannot store the membership: " + stored.error().text() + "; this head ends"});
      return;
    }
    ++state.counters->batches;
    state.counters->member_changes += batch.delta.changed.size();
    state.counters->tombstones = state.core->tombstone_count();
  }
  auto answers = std::move(state.answers);
  state.answers.clear();
  for (const auto& give : answers) {
    give();
  }
  if (!batch.empty()) {
    tell_members(batch);
    tell_directory(batch.directory);
  }
  arm();
}

void BrokerActor::tell_members(const BrokerBatch& batch) {
  for (const auto& fenced : batch.fenced) {
    tell(fenced.node, fenced);
  }
  for (const auto& drain : batch.drains) {
    tell(drain.node, drain.order);
  }
  if (batch.delta.base != batch.delta.epoch) {
    state.untold.push_back(batch.delta);
    schedule_broadcast();
  }
}

void BrokerActor::schedule_broadcast() {
  if (state.broadcast_due) {
    return;
  }
  const auto members = static_cast<std::int64_t>(state.core->view().live().size());
  const auto wait = std::max(
      std::chrono::duration_cast<std::chrono::milliseconds>(members * broadcast_delay_per_member),
      std::chrono::milliseconds{state.options.core.times.batch});
  if (wait < shortest_broadcast_delay) {
    broadcast();
    return;
  }
  state.broadcast_due = true;
  delayed_send(this, wait, BrokerBroadcast{});
}

/// All changes since the last time as one delta.
void BrokerActor::broadcast() {
  if (state.untold.empty() || state.ended) {
    return;
  }
  ViewDelta delta;
  delta.term = state.untold.front().term;
  delta.base = state.untold.front().base;
  delta.epoch = state.untold.back().epoch;
  std::map<std::pair<NodeId, std::uint64_t>, Member> last;
  for (auto& part : state.untold) {
    for (auto& member : part.changed) {
      last[{member.id, member.incarnation}] = std::move(member);
    }
  }
  state.untold.clear();
  for (auto& [key, member] : last) {
    delta.changed.push_back(std::move(member));
  }
  const auto message = caf::make_message(delta);
  for (const auto& [id, member] : state.core->view().live()) {
    const auto found = state.agents.find(id);
    if (found != state.agents.end()) {
      ++state.counters->messages_sent;
      send(found->second, message);
    }
  }
  for (const auto& member : delta.changed) {
    if (!is_live(member.state) && state.core->view().find(member.id) == nullptr) {
      state.agents.erase(member.id);
    }
  }
}

void BrokerActor::tell_directory(const std::vector<DirectoryEntry>& entries) {
  std::map<NodeId, DirectoryUpdate> updates;
  for (const auto& entry : entries) {
    for (const auto& node : state.core->interested(entry.path)) {
      updates[node].entries.push_back(entry);
    }
  }
  for (auto& [node, update] : updates) {
    update.term = state.core->info().term;
    tell(node, std::move(update));
  }
}

void BrokerActor::arm() {
  const auto next = state.core->next_deadline();
  if (!next || state.ended || (state.tick_at && *state.tick_at <= *next)) {
    return;
  }
  state.tick_at = next;
  const auto now = clock().now();
  const auto wait = *next > now ? *next - now : net::Duration::zero();
  // Rounded up: a tick that comes too early would only be armed again.
  delayed_send(this, std::chrono::ceil<std::chrono::milliseconds>(wait), BrokerTick{});
}

void BrokerActor::end(const error& reason) {
  if (state.ended) {
    return;
  }
  state.ended = true;
  spdlog::error("broker: {}", reason.text());
  if (state.options.on_end) {
    *told_ = true;
    state.options.on_end(reason);
  }
  quit(make_caf_error(reason));
}

}  // namespace

void Broker::stop() const { caf::anon_send(actor, BrokerStop{}); }

expected<Broker> start_broker(caf::actor_system& system, BrokerOptions options) {
  auto state = options.store->load();
  if (!state) {
    return fail(state.error());
  }
  const Moment now{system.clock().now(), options.wall_ms ? options.wall_ms() : system_ms()};
  auto core = std::make_unique<BrokerCore>(options.core, std::move(*state), now);
  if (auto begun = options.store->begin(core->info()); !begun) {
    return fail(begun.error());
  }
  Broker result;
  result.info = core->info();
  auto counters = std::make_shared<BrokerCounters>();
  result.counters = counters;
  result.actor =
      options.detached
          ? system.spawn<BrokerActor, caf::detached>(std::move(options), std::move(core), counters)
          : system.spawn<BrokerActor>(std::move(options), std::move(core), counters);
  return result;
}

}  // namespace troupe
