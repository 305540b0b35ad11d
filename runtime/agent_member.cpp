// What an agent does while it is a member: view, heartbeats, lease, fencing, leaving.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "net/caf_error.hpp"
#include "runtime/agent_actor.hpp"

namespace troupe {

namespace {

constexpr auto command_timeout = std::chrono::seconds{2};
/// Syncs in a row without an answer after which the broker counts as lost.
constexpr std::uint32_t syncs_to_lose = 3;
/// Of the lease, as a node counts it. The rest covers the difference of two clocks' speeds, and the time from the broker's
/// decision until the head's heartbeats no longer answer the node (storing, telling).
constexpr double lease_share = 0.8;
/// What does not end at the drain deadline keeps the node for this long.
constexpr auto last_breath = std::chrono::seconds{1};

Observed observed(net::HeartbeatVerdict verdict) {
  switch (verdict) {
    case net::HeartbeatVerdict::alive:
      return Observed::alive;
    case net::HeartbeatVerdict::suspect:
      return Observed::suspect;
    case net::HeartbeatVerdict::gone:
      return Observed::gone;
  }
  return Observed::suspect;
}

}  // namespace

// -- joining and losing ------------------------------------------------------------------------------------

void AgentActor::adopt(const caf::actor& broker, net::TimePoint sent, JoinReply& reply) {
  const bool back = incarnation_ == reply.incarnation;
  broker_info_ = reply.snapshot.broker;
  broker_ = broker;
  times_ = reply.times;
  incarnation_ = reply.incarnation;
  failed_syncs_ = 0;
  lease_ = true;
  lease_until_ = std::max(
      lease_until_, sent + std::chrono::duration_cast<net::Duration>(times_.lease * lease_share));
  monitor(broker_);
  if (back) {
    ++reconnects_;
  }
  set_phase(AgentPhase::member);
  replace_view(View{std::move(reply.snapshot)});
  spdlog::info("agent: {} cluster \"{}\" (id {}) as incarnation {}, epoch {}, {} members",
               back ? "back in" : "joined", broker_info_.cluster,
               short_string(broker_info_.cluster_id), incarnation_, view().epoch(),
               view().live().size());
  sync();
  arm_lease();
  reclaim_all();
  reask_directory();
  repeat_observations();
  if (config_.broker) {
    call_members_back();
  }
  if (!back && hooks_.on_joined) {
    hooks_.on_joined(incarnation_);
  }
  if (draining_) {
    finish_drain();
  }
}

void AgentActor::broker_lost(const std::string& why) {
  if (phase_ != AgentPhase::member) {
    return;
  }
  if (config_.broker) {
    return;  // the process ends with its broker
  }
  spdlog::warn("agent: the broker at {} is lost ({}); work goes on", broker_info_.address, why);
  demonitor(broker_);
  seek("the broker at " + broker_info_.address);
}

void AgentActor::schedule_sync() {
  const double factor = 0.75 + random_.uniform() / 2;
  later(std::chrono::duration_cast<net::Duration>(times_.sync_interval * factor),
        [this, generation = ++sync_generation_] {
          if (generation == sync_generation_ && phase_ == AgentPhase::member) {
            sync();
          }
        });
}

void AgentActor::sync() {
  if (syncing_) {
    return;
  }
  syncing_ = true;
  const auto broker = broker_;
  request(broker_, command_timeout,
          SyncRequest{config_.self.id, incarnation_, broker_info_.term, view().epoch()})
      .then(
          [this, broker](SyncReply& reply) {
            syncing_ = false;
            if (broker == broker_) {
              failed_syncs_ = 0;
              on_sync_reply(reply);
            } else if (phase_ == AgentPhase::member) {
              sync();  // the new broker's turn, which had to wait for this
            }
          },
          [this, broker](const caf::error& reason) {
            syncing_ = false;
            if (phase_ != AgentPhase::member) {
              return;
            }
            if (broker != broker_) {
              sync();
            } else if (++failed_syncs_ >= syncs_to_lose && !config_.broker) {
              broker_lost("no answer to " + std::to_string(failed_syncs_) +
                          " syncs: " + describe(reason));
            } else {
              schedule_sync();
            }
          });
}

void AgentActor::on_sync_reply(SyncReply& reply) {
  if (reply.code == ec::session_lost) {
    fence(reply.text, false);
    return;
  }
  if (reply.code == ec::closed) {
    broker_lost(reply.text);
    return;
  }
  if (!reply.snapshot.empty() && reply.snapshot.front().epoch >= view().epoch()) {
    replace_view(View{std::move(reply.snapshot.front())});
  } else if (reply.delta.base != reply.delta.epoch) {
    on_delta(reply.delta);
  }
  repeat_observations();
  schedule_sync();
}

void AgentActor::on_delta(const ViewDelta& delta) {
  if (phase_ != AgentPhase::member || delta.term != broker_info_.term) {
    return;
  }
  std::vector<Member> before;
  for (const auto& member : delta.changed) {
    if (const auto* known = view().find(member.id)) {
      before.push_back(*known);
    }
  }
  switch (change_view([&delta](View& view) { return view.apply(delta); })) {
    case View::Applied::yes:
      for (const auto& member : before) {
        if (view().find(member.id, member.incarnation) == nullptr) {
          member_ended(member);
        }
      }
      tell_view();
      update_watches(delta);
      break;
    case View::Applied::old:
      break;
    case View::Applied::gap:
      sync();
  }
}

// -- the view ----------------------------------------------------------------------------------------------

/// A whole view in place of the old one.
void AgentActor::replace_view(View fresh) {
  change_view([&fresh](View& view) { std::swap(view, fresh); });
  for (const auto& [id, member] : fresh.live()) {
    if (view().find(id, member.incarnation) == nullptr) {
      member_ended(member);
    }
  }
  tell_view();
  update_watches();
}

void AgentActor::member_ended(const Member& before) {
  verdicts_.erase(before.id);
  forget_targets_on(before.id);
  if (view().find(before.id) != nullptr || before.id == config_.self.id) {
    return;
  }
  // Requests to it fail at once with the reason, instead of after the grace time.
  const auto& all = view().ended();
  const auto ended = std::find_if(all.rbegin(), all.rend(), [&before](const auto& e) {
    return e.id == before.id && e.incarnation == before.incarnation;
  });
  const std::string why = ended != all.rend()
                              ? std::string{to_string(ended->state)} + ": " + ended->reason
                              : std::string{"it is no longer a member"};
  mesh_.disconnect(before.id, {ec::node_unreachable, "node " + short_string(before.id) + " \"" +
                                                         before.name + "\" is " + why});
}

/// The head observes everybody; of a thousand members one has changed.
void AgentActor::update_watches(const ViewDelta& delta) {
  if (!config_.broker) {
    update_watches();
    return;
  }
  for (const auto& changed : delta.changed) {
    const auto* member = view().find(changed.id);
    if (member == nullptr) {
      unwatch(changed.id);
    } else {
      watch(changed.id, member->address);
    }
  }
}

void AgentActor::update_watches() {
  std::map<NodeId, std::string> wanted;
  if (config_.broker) {
    for (const auto& [id, member] : view().live()) {
      wanted.emplace(id, member.address);
    }
  } else if (incarnation_ != 0) {
    wanted.emplace(broker_info_.broker, broker_info_.address);
    for (const auto& id : subjects_of(view(), config_.self.id, times_.observers)) {
      if (const auto* member = view().find(id)) {
        wanted.emplace(id, member->address);
      }
    }
  }
  std::vector<NodeId> dropped;
  for (const auto& [id, address] : watched_) {
    if (wanted.count(id) == 0) {
      dropped.push_back(id);
    }
  }
  for (const auto& id : dropped) {
    unwatch(id);
  }
  for (const auto& [id, address] : wanted) {
    watch(id, address);
  }
}

void AgentActor::watch(const NodeId& id, const std::string& address) {
  auto* heartbeats = mesh_.heartbeats();
  if (heartbeats == nullptr || id == config_.self.id) {
    return;
  }
  auto& known = watched_[id];
  if (known != address) {
    known = address;
    heartbeats->watch(id, address);
  }
}

void AgentActor::unwatch(const NodeId& id) {
  if (watched_.erase(id) != 0) {
    verdicts_.erase(id);
    mesh_.heartbeats()->forget(id);
  }
}

void AgentActor::on_verdict(const NodeId& peer, net::HeartbeatVerdict verdict,
                            const std::string& reason) {
  if (watched_.count(peer) == 0) {
    return;
  }
  const Verdict said{verdict, reason};
  verdicts_[peer] = said;
  tell_broker_about(peer, said);
}

void AgentActor::tell_broker_about(const NodeId& subject, const Verdict& verdict) {
  const auto* member = view().find(subject);
  if (phase_ != AgentPhase::member || member == nullptr) {
    return;
  }
  send(broker_, Observation{config_.self.id, incarnation_, subject, member->incarnation,
                            observed(verdict.verdict), verdict.reason});
}

/// An observation is sent without an answer; what matters is said again now and then.
void AgentActor::repeat_observations() {
  for (const auto& [id, verdict] : verdicts_) {
    const auto* member = view().find(id);
    const bool differs = member != nullptr && (member->state == MemberState::suspect) !=
                                                  (verdict.verdict != net::HeartbeatVerdict::alive);
    if (differs || verdict.verdict != net::HeartbeatVerdict::alive) {
      tell_broker_about(id, verdict);
    } else if (member != nullptr && member->state == MemberState::suspect) {
      tell_broker_about(id, verdict);
    }
  }
}

// -- lease and fencing -------------------------------------------------------------------------------------

void AgentActor::arm_lease() {
  publish_status();
  if (config_.broker) {
    return;  // broker and node live and die together
  }
  // Renewed ahead of its end, so that nobody who asks in between sees a lease that has run out.
  const auto left = lease_until_ - now();
  const auto ahead = std::chrono::duration_cast<net::Duration>(times_.lease * (1 - lease_share));
  later(left > ahead ? left - ahead : left, [this, generation = ++lease_generation_] {
    if (generation == lease_generation_) {
      check_lease();
    }
  });
}

/// By the clock: a process that was stopped handles what has piled up before its timer.
bool AgentActor::lease_holds() {
  if (!lease_ || config_.broker) {
    return lease_;
  }
  if (auto* heartbeats = mesh_.heartbeats()) {
    const auto stats = heartbeats->stats(broker_info_.broker);
    if (stats && stats->confirmed) {
      lease_until_ = std::max(
          lease_until_, *stats->confirmed +
                            std::chrono::duration_cast<net::Duration>(times_.lease * lease_share));
    }
  }
  return now() < lease_until_;
}

void AgentActor::check_lease() {
  if (incarnation_ == 0 || !lease_) {
    return;
  }
  if (lease_holds()) {
    arm_lease();
  } else {
    lose_lease();
  }
}

void AgentActor::lose_lease() {
  lease_ = false;
  spdlog::warn("agent: the broker was not heard for the lease time; exclusive things end here");
  const error reason{ec::closed, "the lease ran out: the broker was not heard in time"};
  std::vector<std::string> paths;
  for (const auto& [path, hosted] : hosted_) {
    if (hosted.hosting.exclusive) {
      paths.push_back(path);
    }
  }
  for (const auto& path : paths) {
    end_hosted(path, reason);
  }
  publish_status();
  if (phase_ == AgentPhase::member) {
    // Heartbeats are gone although the link still stands: look again, which renews the lease.
    broker_lost("no heartbeat within the lease time");
  }
}

void AgentActor::fence(const std::string& reason, bool final) {
  spdlog::warn("agent: incarnation {} is over: {}", incarnation_, reason);
  if (broker_) {
    demonitor(broker_);
  }
  ++fenced_;
  incarnation_ = 0;
  lease_ = false;
  lease_until_ = {};
  ++lease_generation_;
  to_release_.clear();
  const error why{ec::closed, "this node was fenced: " + reason};
  while (!hosted_.empty()) {
    end_hosted(hosted_.begin()->first, why);
  }
  to_release_.clear();
  if (hooks_.on_fenced) {
    hooks_.on_fenced(reason);
  }
  // Whoever still has a link to the old incarnation learns that it is over.
  for (const auto& peer : mesh_.linked()) {
    mesh_.disconnect(peer, why);
  }
  change_view([](View& view) {
    View empty;
    empty.set_broker(view.broker());
    view = std::move(empty);
  });
  tell_view();
  verdicts_.clear();
  update_watches();
  for (auto& [path, entry] : paths_) {
    set_target(path, entry, nullptr);
  }
  if (final) {
    refuse({ec::unauthorized, reason});
  } else {
    seek("the broker, to join anew");
  }
}

// -- leaving -----------------------------------------------------------------------------------------------

void AgentActor::start_drain(const std::string& reason, Milliseconds deadline, bool ordered) {
  if (draining_ || phase_ == AgentPhase::left || phase_ == AgentPhase::refused) {
    return;
  }
  draining_ = true;
  drain_reason_ = reason;
  if (deadline.count() <= 0) {
    deadline = times_.drain_deadline;
  }
  spdlog::info("agent: draining ({}), {} ms at most", reason, deadline.count());
  publish_status();
  if (!ordered && broker_ && !config_.broker) {
    announce_drain(deadline);
  }
  std::vector<std::string> stop;
  for (const auto& [path, hosted] : hosted_) {
    if (hosted.hosting.stop_on_drain) {
      stop.push_back(path);
    }
  }
  for (const auto& path : stop) {
    send_exit(hosted_.at(path).hosting.actor, caf::exit_reason::user_shutdown);
  }
  later(deadline, [this] {
    if (phase_ != AgentPhase::left) {
      spdlog::warn("agent: the drain deadline is over, {} hosted actors are ended", hosted_.size());
      drain_hook_done_ = true;
      while (!hosted_.empty()) {
        end_hosted(hosted_.begin()->first, {ec::closed, "the node's drain deadline is over"});
      }
      drain_progress();
      // Not for ever: the process ends soon after.
      later(last_breath, [this] {
        ending_.clear();
        drain_progress();
      });
    }
  });
  if (!hooks_.on_drain) {
    drain_hook_done_ = true;
  } else {
    hooks_.on_drain(deadline, here(std::function<void()>{[this] {
                      drain_hook_done_ = true;
                      drain_progress();
                    }}));
  }
  drain_progress();
}

void AgentActor::announce_drain(Milliseconds deadline) {
  request(broker_, command_timeout,
          DrainRequest{to_string(config_.self.id), deadline.count(), drain_reason_})
      .then([](const CommandReply&) {}, [](const caf::error&) {});  // the farewell follows anyhow
}

void AgentActor::finish_drain() {
  // Drained while it was out of touch: the broker hears of it now.
  if (broker_ && !config_.broker) {
    announce_drain(Milliseconds{0});
  }
  drain_progress();
}

void AgentActor::drain_progress() {
  if (draining_ && drain_hook_done_ && hosted_.empty() && ending_.empty() &&
      phase_ != AgentPhase::left) {
    leave();
  }
}

void AgentActor::leave() {
  const auto tell = [this] {
    if (hooks_.on_left) {
      hooks_.on_left();
    }
  };
  if (phase_ != AgentPhase::member) {
    spdlog::warn("agent: leaves without telling the broker, which it does not hear");
    set_phase(AgentPhase::left);
    tell();
    return;
  }
  set_phase(AgentPhase::left);
  request(broker_, command_timeout, LeaveRequest{config_.self.id, incarnation_, drain_reason_})
      .then([tell](const CommandReply&) { tell(); },
            [tell](const caf::error& reason) {
              spdlog::warn("agent: the broker did not take the farewell: {}", describe(reason));
              tell();
            });
}

}  // namespace troupe
