// Why: the agent's insides, shared by the files that implement it. Not installed knowledge: use runtime/agent.hpp.
// Thread-safety: `AgentShared` by its mutex; everything else only on the agent's thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include <caf/event_based_actor.hpp>

#include "net/philox.hpp"
#include "runtime/agent.hpp"
#include "supervision/membership_messages.hpp"

namespace troupe {

class RefProxy;

/// A function that runs on the agent's thread; never leaves the process.
struct AgentCall {
  std::function<void()> fn;
};

/// What other threads read.
struct AgentShared {
  mutable std::mutex mutex;
  /// Changed by the agent only, which therefore reads it without the lock.
  View view;
  /// A copy for others, made when somebody asks: most changes are of interest to nobody.
  mutable std::shared_ptr<const View> copy = std::make_shared<const View>();
  AgentStatus status;
  /// When `status.lease` ends unless it is renewed: whoever asks may be ahead of the agent.
  net::TimePoint lease_until = net::TimePoint::max();
  /// Written on the agent's thread, read by the agent only.
  std::vector<std::function<void(const std::shared_ptr<const View>&)>> on_view;

  /// Whom heartbeats are accepted from. Any thread.
  bool allows(const NodeId& node) const;
  std::shared_ptr<const View> shared_view() const;
};

class AgentActor final : public caf::event_based_actor {
 public:
  AgentActor(caf::actor_config& cfg, net::Mesh& mesh, AgentConfig config, AgentHooks hooks,
             std::shared_ptr<AgentShared> shared);

  caf::behavior make_behavior() override;
  const char* name() const override { return "agent"; }
  void on_exit() override;

  // Called through AgentCall.
  void host(Hosting hosting, std::function<void(expected<DirectoryEntry>)> done);
  void unhost(const std::string& path);
  void resolve(const std::string& path, net::Duration timeout,
               std::function<void(expected<caf::actor>)> done);
  void add_ref(const std::string& path, const caf::weak_actor_ptr& ref);
  void want_target(const std::string& path);
  void start_drain(const std::string& reason, Milliseconds deadline, bool ordered);
  void on_verdict(const NodeId& peer, net::HeartbeatVerdict verdict, const std::string& reason);

 private:
  struct Hosted {
    Hosting hosting;
    DirectoryEntry entry;
  };
  struct Waiting {
    net::TimePoint until;
    std::function<void(expected<caf::actor>)> done;
  };
  struct Cached {
    DirectoryEntry entry;
    bool known = false;  // the broker has answered since the last (re)join
    bool asking = false;
    bool finding = false;
    caf::actor actor;
    std::vector<Waiting> waiting;
    std::vector<caf::weak_actor_ptr> refs;
  };
  struct Verdict {
    net::HeartbeatVerdict verdict;
    std::string reason;
  };

  // -- plumbing (agent.cpp) --------------------------------------------------------------------------
  void later(net::Duration delay, std::function<void()> fn);
  /// A function that may be called on any thread and runs `fn` here, if the agent still lives.
  template <class... Ts>
  std::function<void(Ts...)> here(std::function<void(Ts...)> fn) {
    return [weak = caf::actor_cast<caf::actor_addr>(address()), fn = std::move(fn)](Ts... args) {
      if (const auto self = caf::actor_cast<caf::actor>(weak)) {
        caf::anon_send(self, AgentCall{[fn, args...] { fn(args...); }});
      }
    };
  }
  net::TimePoint now() const { return const_cast<AgentActor*>(this)->clock().now(); }
  std::int64_t wall_ms() const;
  void set_phase(AgentPhase phase);
  void publish_status();
  /// Changes the view under the lock.
  template <class F>
  auto change_view(F&& fn) {
    const std::lock_guard lock{shared_->mutex};
    shared_->copy = nullptr;
    return fn(shared_->view);
  }
  const View& view() const noexcept { return shared_->view; }
  void tell_view();
  caf::message_handler control_handlers();
  caf::message_handler relay_handlers();
  void on_actor_down(const caf::down_msg& down);
  NodeId sender_node();
  bool from_broker();

  // -- finding the broker (agent_seek.cpp) ----------------------------------------------------------
  void seek(const std::string& why);
  void seek_round();
  void try_candidates(std::uint64_t round, const std::vector<std::string>& addresses);
  void try_address(std::uint64_t round, const std::string& address);
  void ask_peer(std::uint64_t round, const std::string& address, const NodeId& peer);
  void on_who_is(std::uint64_t round, const std::string& address, const WhoIsReply& reply);
  void candidate_failed(std::uint64_t round, const std::string& address, const error& reason);
  void candidate_done(std::uint64_t round);
  void end_round();
  void reach_broker(std::uint64_t round, const BrokerInfo& info, const std::string& via);
  void find_broker(std::uint64_t round, const BrokerInfo& info);
  void join(const caf::actor& broker, const BrokerInfo& info);
  void on_join_reply(const caf::actor& broker, const BrokerInfo& info, net::TimePoint sent,
                     JoinReply& reply);
  void refuse(const error& reason);
  void on_broker_here(const BrokerInfo& info);
  void call_members_back();
  void call_back(const NodeId& id, std::uint64_t incarnation);
  void call_back_later(const NodeId& id, std::uint64_t incarnation);

  // -- being a member (agent_member.cpp) -------------------------------------------------------------
  void adopt(const caf::actor& broker, net::TimePoint sent, JoinReply& reply);
  void broker_lost(const std::string& why);
  void schedule_sync();
  void sync();
  void on_sync_reply(SyncReply& reply);
  void on_delta(const ViewDelta& delta);
  void replace_view(View fresh);
  void member_ended(const Member& before);
  void update_watches(const ViewDelta& delta);
  void update_watches();
  void watch(const NodeId& id, const std::string& address);
  void unwatch(const NodeId& id);
  void tell_broker_about(const NodeId& subject, const Verdict& verdict);
  void repeat_observations();
  void arm_lease();
  void check_lease();
  bool lease_holds();
  void lose_lease();
  void fence(const std::string& reason, bool final);
  void announce_drain(Milliseconds deadline);
  void finish_drain();
  void drain_progress();
  void leave();

  // -- directory (agent_directory.cpp) ---------------------------------------------------------------
  void claim(Hosting hosting, std::function<void(expected<DirectoryEntry>)> done);
  void reclaim_all();
  void end_hosted(const std::string& path, const error& reason);
  bool on_ending_down(const caf::actor_addr& actor);
  void release(const DirectoryEntry& entry);
  Cached& cached(const std::string& path);
  static bool wanted(const Cached& entry);
  void ask_directory(const std::string& path);
  void on_entry(const DirectoryEntry& entry);
  void find_target(const std::string& path);
  void on_target(const std::string& path, std::uint64_t epoch, expected<caf::actor> found);
  void set_target(const std::string& path, Cached& entry, const caf::actor& actor);
  void expire_waiting(const std::string& path);
  void forget_targets_on(const NodeId& node);
  void reask_directory();

  net::Mesh& mesh_;
  AgentConfig config_;
  AgentHooks hooks_;
  std::shared_ptr<AgentShared> shared_;
  PhiloxStream random_;

  AgentPhase phase_ = AgentPhase::seeking;
  MembershipTimes times_;
  BrokerInfo
      broker_info_;    // of the cluster this node belongs to; cluster_id zero before the first join
  caf::actor broker_;  // null unless joining or member
  std::uint64_t incarnation_ = 0;
  std::uint64_t fenced_ = 0;
  std::uint64_t reconnects_ = 0;

  // seeking
  std::uint64_t round_ = 0;
  std::size_t open_candidates_ = 0;
  std::size_t refused_candidates_ = 0;
  std::size_t tried_candidates_ = 0;
  bool reaching_ = false;
  Milliseconds backoff_{0};
  net::TimePoint seeking_since_{};
  std::string waiting_for_;
  error first_refusal_;

  // member
  std::map<NodeId, std::string> watched_;
  std::map<NodeId, Verdict> verdicts_;
  std::uint32_t failed_syncs_ = 0;
  std::uint64_t sync_generation_ = 0;
  bool syncing_ = false;
  net::TimePoint lease_until_{};
  std::uint64_t lease_generation_ = 0;
  bool lease_ = false;
  bool draining_ = false;
  bool drain_hook_done_ = false;
  std::string drain_reason_;

  // directory
  std::map<std::string, Hosted> hosted_;
  /// Told to end and not ended yet: until then nobody else may have what is exclusive.
  struct Ending {
    caf::actor_addr actor;
    DirectoryEntry entry;
  };
  std::vector<Ending> ending_;
  std::map<std::string, Cached> paths_;
  std::vector<DirectoryEntry> to_release_;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::AgentCall)
