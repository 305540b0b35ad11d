// How an agent finds the broker: for the first time, and again after it was lost.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "net/caf_error.hpp"
#include "runtime/agent_actor.hpp"

namespace troupe {

namespace {

constexpr auto ask_timeout = std::chrono::seconds{2};
constexpr auto join_timeout = std::chrono::seconds{3};
/// Members whose addresses are tried beside the broker's, to hear of a broker that has moved.
constexpr std::size_t members_asked = 6;
/// After this much seeking a node that was never a member looks less often.
constexpr auto patience = std::chrono::hours{1};
constexpr int impatience_factor = 8;

bool is_refusal(const error& reason) {
  return reason.code() == ec::handshake_refused || reason.code() == ec::unauthorized;
}

}  // namespace

void AgentActor::seek(const std::string& why) {
  waiting_for_ = why;
  broker_ = nullptr;
  backoff_ = config_.retry_first;
  seeking_since_ = now();
  set_phase(AgentPhase::seeking);
  seek_round();
}

void AgentActor::seek_round() {
  if (phase_ != AgentPhase::seeking) {
    return;
  }
  const auto round = ++round_;
  open_candidates_ = refused_candidates_ = tried_candidates_ = 0;
  reaching_ = false;
  first_refusal_ = {};
  if (config_.broker) {
    join(config_.broker->actor, config_.broker->info);
    return;
  }
  std::vector<std::string> addresses;
  if (!broker_info_.address.empty()) {
    addresses.push_back(broker_info_.address);
  }
  std::vector<std::string> others;
  for (const auto& [id, member] : view().live()) {
    if (id != config_.self.id && member.address != broker_info_.address) {
      others.push_back(member.address);
    }
  }
  for (std::size_t i = 0; i < members_asked && !others.empty(); ++i) {
    const auto at = random_.below(others.size());
    addresses.push_back(std::move(others[at]));
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(at));
  }
  if (!config_.discovery) {
    try_candidates(round, addresses);
    return;
  }
  config_.discovery->find(here(std::function{
      [this, round, addresses](std::vector<std::string> found, std::vector<std::string> problems) {
        auto all = addresses;
        all.insert(all.end(), found.begin(), found.end());
        if (all.empty() && !problems.empty()) {
          waiting_for_ = problems.front();
        }
        try_candidates(round, all);
      }}));
}

void AgentActor::try_candidates(std::uint64_t round, const std::vector<std::string>& addresses) {
  if (round != round_ || phase_ != AgentPhase::seeking) {
    return;
  }
  std::set<std::string> seen;
  std::vector<std::string> unique;
  for (const auto& address : addresses) {
    if (address != config_.self.address && seen.insert(address).second) {
      unique.push_back(address);
    }
  }
  open_candidates_ = tried_candidates_ = unique.size();
  if (unique.empty()) {
    end_round();
    return;
  }
  for (const auto& address : unique) {
    try_address(round, address);
  }
}

void AgentActor::try_address(std::uint64_t round, const std::string& address) {
  mesh_.connect(address, here(std::function{[this, round, address](expected<NodeId> peer) {
                  if (round != round_ || phase_ != AgentPhase::seeking) {
                    return;
                  }
                  if (peer) {
                    ask_peer(round, address, *peer);
                  } else {
                    candidate_failed(round, address, peer.error());
                  }
                }}));
}

void AgentActor::ask_peer(std::uint64_t round, const std::string& address, const NodeId& peer) {
  mesh_.find(peer, agent_actor_name, ask_timeout,
             here(std::function{[this, round, address](expected<caf::actor> agent) {
               if (round != round_ || phase_ != AgentPhase::seeking) {
                 return;
               }
               if (!agent) {
                 candidate_failed(round, address, agent.error());
                 return;
               }
               request(*agent, ask_timeout, WhoIsBroker{config_.self.id})
                   .then([this, round,
                          address](const WhoIsReply& reply) { on_who_is(round, address, reply); },
                         [this, round, address](const caf::error& reason) {
                           candidate_failed(round, address, to_error(reason));
                         });
             }}));
}

void AgentActor::on_who_is(std::uint64_t round, const std::string& address,
                           const WhoIsReply& reply) {
  if (round != round_ || phase_ != AgentPhase::seeking) {
    return;
  }
  const auto& info = reply.broker;
  if (!reply.connected || !info.broker) {
    candidate_failed(round, address,
                     {ec::node_unreachable, "the node at " + address + " waits for it as well"});
  } else if (broker_info_.cluster_id && info.cluster_id != broker_info_.cluster_id) {
    candidate_failed(round, address,
                     {ec::conflict, "the node at " + address +
                                        " belongs to another cluster of the "
                                        "same name (id " +
                                        short_string(info.cluster_id) + ", this node's is " +
                                        short_string(broker_info_.cluster_id) + ")"});
  } else if (info.term < broker_info_.term) {
    candidate_failed(round, address,
                     {ec::conflict, "the node at " + address + " follows an outdated broker"});
  } else {
    reach_broker(round, info, address);
  }
}

void AgentActor::reach_broker(std::uint64_t round, const BrokerInfo& info, const std::string& via) {
  if (reaching_) {
    candidate_done(round);  // another answer was faster
    return;
  }
  reaching_ = true;
  const auto linked = mesh_.linked();
  if (info.address == via || std::count(linked.begin(), linked.end(), info.broker) > 0) {
    find_broker(round, info);
    return;
  }
  mesh_.connect(info.address, here(std::function{[this, round, info](expected<NodeId> peer) {
                  if (round != round_ || phase_ != AgentPhase::seeking) {
                    return;
                  }
                  if (peer && *peer == info.broker) {
                    find_broker(round, info);
                    return;
                  }
                  reaching_ = false;
                  candidate_failed(
                      round, info.address,
                      peer ? error{ec::conflict,
                                   "another node answers at the broker's address " + info.address}
                           : peer.error());
                }}));
}

void AgentActor::find_broker(std::uint64_t round, const BrokerInfo& info) {
  mesh_.find(info.broker, broker_actor_name, ask_timeout,
             here(std::function{[this, round, info](expected<caf::actor> broker) {
               if (round != round_ || phase_ != AgentPhase::seeking) {
                 return;
               }
               if (broker) {
                 join(*broker, info);
               } else {
                 reaching_ = false;
                 candidate_failed(round, info.address, broker.error());
               }
             }}));
}

void AgentActor::candidate_failed(std::uint64_t round, const std::string& address,
                                  const error& reason) {
  if (round != round_ || phase_ != AgentPhase::seeking) {
    return;
  }
  if (is_refusal(reason)) {
    ++refused_candidates_;
    if (!first_refusal_) {
      first_refusal_ = {reason.code(),
                        "the node at " + address + " refuses this node: " + reason.text()};
    }
  }
  spdlog::debug("agent: {}: {}", address, reason.text());
  candidate_done(round);
}

void AgentActor::candidate_done(std::uint64_t round) {
  if (round == round_ && open_candidates_ > 0 && --open_candidates_ == 0 && !reaching_) {
    end_round();
  }
}

void AgentActor::end_round() {
  // Nobody who answered wants this node, and it was never one of them: an operator has to look.
  if (first_refusal_ && incarnation_ == 0 && fenced_ == 0 &&
      refused_candidates_ == tried_candidates_) {
    refuse(first_refusal_);
    return;
  }
  const double factor = 0.5 + random_.uniform() / 2;
  auto wait = backoff_;
  if (now() - seeking_since_ > patience && incarnation_ == 0) {
    wait *= impatience_factor;
  }
  later(std::chrono::duration_cast<net::Duration>(wait * factor), [this, round = round_] {
    if (round == round_) {
      seek_round();
    }
  });
  if (backoff_ == config_.retry_first) {
    spdlog::info("agent: waiting for {} ({} addresses tried, again every {} ms at most)",
                 waiting_for_, tried_candidates_, config_.retry_most.count());
  }
  backoff_ = std::min(backoff_ * 2, config_.retry_most);
}

void AgentActor::join(const caf::actor& broker, const BrokerInfo& info) {
  set_phase(AgentPhase::joining);
  JoinRequest ask;
  ask.member = config_.self;
  ask.member.incarnation = incarnation_;
  ask.member.draining = draining_;
  ask.cluster_id = broker_info_.cluster_id;
  ask.term = broker_info_.term;
  ask.epoch = view().epoch();
  ask.clock_ms = wall_ms();
  const auto sent = now();
  request(broker, join_timeout, std::move(ask))
      .then([this, broker, info,
             sent](JoinReply& reply) { on_join_reply(broker, info, sent, reply); },
            [this, info](const caf::error& reason) {
              if (phase_ == AgentPhase::joining) {
                spdlog::debug("agent: the broker at {} did not answer: {}", info.address,
                              describe(reason));
                // Not `seek`: that would look again at once, for ever.
                waiting_for_ = "an answer of the broker at " + info.address;
                set_phase(AgentPhase::seeking);
                end_round();
              }
            });
}

void AgentActor::on_join_reply(const caf::actor& broker, const BrokerInfo& info,
                               net::TimePoint sent, JoinReply& reply) {
  if (phase_ != AgentPhase::joining) {
    return;
  }
  switch (reply.code) {
    case ec::none:
      adopt(broker, sent, reply);
      break;
    case ec::session_lost:
      fence(reply.text, false);
      break;
    case ec::closed:
      spdlog::warn("agent: {}", reply.text);
      set_phase(AgentPhase::seeking);
      waiting_for_ = "the broker of the cluster";
      end_round();
      break;
    default:
      if (incarnation_ != 0) {
        // A member of one cluster does not end because another has no place for it.
        spdlog::warn("agent: the broker at {} refuses this node: {}", info.address, reply.text);
        set_phase(AgentPhase::seeking);
        waiting_for_ = "the broker of cluster id " + short_string(broker_info_.cluster_id);
        end_round();
      } else {
        refuse({reply.code, reply.text});
      }
  }
}

void AgentActor::refuse(const error& reason) {
  waiting_for_ = reason.text();
  set_phase(AgentPhase::refused);
  if (hooks_.on_refused) {
    hooks_.on_refused(reason);
  } else {
    spdlog::error("agent: this node may not join: {}", reason.text());
  }
}

/// A later broker of the cluster calls. Also while the old one still counts as heard: its host may have lost power.
void AgentActor::on_broker_here(const BrokerInfo& info) {
  if (info.cluster_id != broker_info_.cluster_id || info.term <= broker_info_.term) {
    return;
  }
  broker_lost("a later one has started at " + info.address);
  if (phase_ != AgentPhase::seeking) {
    return;  // joining: it calls again
  }
  // A round of its own, so that the next one does not cut it short.
  const auto round = ++round_;
  open_candidates_ = tried_candidates_ = 1;
  refused_candidates_ = 0;
  first_refusal_ = {};
  reaching_ = false;
  reach_broker(round, info, info.address);
}

/// A head that was restarted may have another address: its members cannot find it, so it finds them.
void AgentActor::call_members_back() {
  for (const auto& [id, member] : view().live()) {
    if (id != config_.self.id && !member.address.empty()) {
      call_back(id, member.incarnation);
    }
  }
}

/// Again until the member is back or no longer one: it may be cut off now, or not miss its old broker yet.
void AgentActor::call_back(const NodeId& id, std::uint64_t incarnation) {
  const auto* member = view().find(id, incarnation);
  if (member == nullptr || phase_ != AgentPhase::member) {
    return;
  }
  const auto failed = [this, id, incarnation] { call_back_later(id, incarnation); };
  mesh_.connect(member->address, here(std::function{[this, id, failed](expected<NodeId> peer) {
                  if (!peer || *peer != id) {
                    failed();
                    return;
                  }
                  mesh_.find(
                      id, agent_actor_name, ask_timeout,
                      here(std::function{[this, failed](expected<caf::actor> agent) {
                        if (!agent) {
                          failed();
                          return;
                        }
                        request(*agent, ask_timeout, BrokerHere{broker_info_})
                            .then(
                                [this, failed](const WhoIsReply& reply) {
                                  if (!reply.connected || reply.broker.term < broker_info_.term) {
                                    failed();
                                  }
                                },
                                [failed](const caf::error&) { failed(); });
                      }}));
                }}));
}

void AgentActor::call_back_later(const NodeId& id, std::uint64_t incarnation) {
  const double factor = 0.5 + random_.uniform();
  later(std::chrono::duration_cast<net::Duration>(times_.sync_interval * factor),
        [this, id, incarnation] { call_back(id, incarnation); });
}

}  // namespace troupe
