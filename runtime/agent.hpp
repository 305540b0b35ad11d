// Why: each node has one agent. It finds the broker, joins, keeps a copy of the view, observes its neighbours, holds
// the lease on exclusive things, hosts and resolves paths, and does what a member must do when it is
// drained or fenced. Everything else on the node asks the agent.
// Thread-safety: every member from any thread. Hooks are called on the agent's thread and must be quick.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>

#include "net/discovery.hpp"
#include "net/mesh.hpp"
#include "supervision/broker.hpp"
#include "supervision/membership.hpp"

namespace troupe {

enum class AgentPhase : std::uint8_t {
  seeking,  ///< looks for the broker, for the first time or again
  joining,  ///< has found it and asked
  member,   ///< hears it
  left,     ///< has left by itself
  refused,  ///< may not join; final
};

std::string_view to_string(AgentPhase phase) noexcept;

struct AgentConfig {
  /// id, name, address, host, build, pid, head, resources and labels of this node.
  Member self;
  std::string cluster;
  /// Where to look for the cluster; null: nowhere (a head).
  std::shared_ptr<net::Discovery> discovery;
  /// On a head: the broker of this process.
  std::optional<Broker> broker;
  /// Used until the broker's come with the welcome.
  MembershipTimes times;
  /// Wait between rounds of looking for the broker: grows from first to most, times a factor in [0.5, 1).
  Milliseconds retry_first{50};
  Milliseconds retry_most{600};
  std::uint64_t seed = 0;                 ///< of the jitter; 0: from the node id
  std::function<std::int64_t()> wall_ms;  ///< empty: the system's clock
  bool detached = true;  ///< a thread of its own; simulations run it on their scheduler
};

struct AgentHooks {
  /// First, and after each time the node was fenced.
  std::function<void(std::uint64_t incarnation)> on_joined;
  /// The incarnation is over: whatever runs in its name must end. Hosted actors are ended by the agent.
  std::function<void(const std::string& reason)> on_fenced;
  /// The cluster does not take this node. Final.
  std::function<void(const error& reason)> on_refused;
  /// Drain: finish within `deadline` and call `done`. Empty: nothing to finish.
  std::function<void(Milliseconds deadline, std::function<void()> done)> on_drain;
  /// The node has left (or gave up telling the broker); the process may end.
  std::function<void()> on_left;
};

struct AgentStatus {
  AgentPhase phase = AgentPhase::seeking;
  std::uint64_t incarnation = 0;
  bool draining = false;
  bool lease = false;  ///< exclusive things may run
  BrokerInfo broker;
  std::uint64_t epoch = 0;       ///< of the view
  std::uint64_t members = 0;     ///< live ones
  std::string waiting_for;       ///< while seeking: one clause
  std::uint64_t fenced = 0;      ///< times this node was fenced
  std::uint64_t reconnects = 0;  ///< times the broker was found again
  std::uint64_t hosted = 0;
  std::uint64_t resolved = 0;  ///< paths in the cache
};

/// What to host under a path of the directory.
struct Hosting {
  std::string path;
  caf::actor actor;
  /// At most one in the cluster, backed by the lease: the agent ends the actor when it cannot be sure any more.
  bool exclusive = false;
  /// Ended at once when the node drains; otherwise it has until the deadline to end by itself.
  bool stop_on_drain = true;
};

class AgentActor;
struct AgentShared;

class Agent {
 public:
  /// `mesh` and `system` must outlive the agent's `stop`; `mesh` must not watch linked nodes itself.
  static std::shared_ptr<Agent> start(caf::actor_system& system, net::Mesh& mesh,
                                      AgentConfig config, AgentHooks hooks = {});
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// The agent itself; `DrainRequest`, `EventsRequest` sent to it are passed on to the broker.
  const caf::actor& actor() const noexcept { return actor_; }

  /// The view as last heard. Never null; empty before the first join. Copied once per change, when asked for.
  std::shared_ptr<const View> view() const;
  AgentStatus status() const;
  /// Joined and not draining.
  bool ready() const;

  /// `fn` is called with each new view, on the agent's thread.
  void on_view(std::function<void(const std::shared_ptr<const View>&)> fn);

  /// Puts an actor into the directory. `done` gets the entry, or ec::would_block while an exclusive path is held by
  /// another (the text says by whom), ec::session_lost when this node is not a member, ec::closed while draining.
  void host(Hosting hosting, std::function<void(expected<DirectoryEntry>)> done);
  /// Takes it out again. Also done when the actor ends.
  void unhost(const std::string& path);

  /// The actor that is hosted as `path` now, wherever. Waits up to `timeout` for it to appear: ec::not_found.
  void resolve(const std::string& path, net::Duration timeout,
               std::function<void(expected<caf::actor>)> done);

  /// A handle to the path rather than to an actor: messages go to whoever hosts it now, without a hop in between
  /// once it is known; while nobody does they wait, bounded in number and time. See runtime/actor_ref.hpp.
  caf::actor ref(const std::string& path);

  /// No new work from now on; calls `AgentHooks::on_left` in the end. `deadline` zero: the cluster's default.
  void drain(const std::string& reason, Milliseconds deadline = Milliseconds{0});

  /// Ends the agent without a word to anybody. Does not block.
  void stop();

 private:
  Agent() = default;
  caf::actor actor_;
  std::shared_ptr<AgentShared> shared_;
};

}  // namespace troupe
