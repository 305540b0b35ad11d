// Why: what an author of an algorithm programs against. A role is a small class with state and message handlers; the
// runtime makes an actor out of each of its replicas, somewhere, and restarts it there or elsewhere. Its context tells it
// who it is and whom it talks to; it never holds the handle of one incarnation of a peer.
// Thread-safety: a role and its context belong to one replica and are only used inside its handlers, but for
// `RoleContext::stopping`. `RoleRegistry` is filled before the node starts and only read afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <caf/actor.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/message_handler.hpp>
#include <nlohmann/json.hpp>
#include <spdlog/logger.h>

#include "net/bytes.hpp"
#include "net/error.hpp"
#include "net/executor.hpp"
#include "net/node_id.hpp"
#include "net/philox.hpp"
#include "net/type_registry.hpp"

namespace troupe {

enum class PeerState : std::uint8_t {
  absent,  ///< not started yet, being restarted or moved: messages to it wait for a while
  up,
  gone,  ///< has ended for good: messages to it fail
};
std::string_view to_string(PeerState state) noexcept;

/// One replica that this one sees over an edge.
struct Peer {
  std::uint32_t index = 0;
  std::uint64_t incarnation = 0;
  PeerState state = PeerState::absent;
  NodeId node;
  /// A handle to the path: stays good over restarts and moves. Keep it, send to it, request from it.
  caf::actor ref;
};

/// All peers over one edge at one moment.
struct Peers {
  std::uint64_t epoch = 0;  ///< of the run's table; grows
  std::vector<Peer> all;    ///< by index

  std::size_t size() const noexcept { return all.size(); }
  bool empty() const noexcept { return all.empty(); }
  const Peer& operator[](std::size_t i) const { return all[i]; }
  auto begin() const { return all.begin(); }
  auto end() const { return all.end(); }
  const Peer* find(std::uint32_t index) const;
  /// The first peer's handle; null when there is none. For edges with one target.
  caf::actor first() const { return all.empty() ? caf::actor{} : all.front().ref; }
};

/// What has changed over an edge since the last time: the present state of those peers that changed.
struct PeersChange {
  std::string edge;
  std::uint64_t epoch = 0;
  std::vector<Peer> changed;
  std::vector<std::uint32_t>
      removed;  ///< no longer seen over this edge (fewer replicas, another shard)
};

/// A number that others can see (metrics, `troupe tree`). Thread-safe.
class RoleCounter {
 public:
  void add(double x) noexcept { value_.fetch_add(x, std::memory_order_relaxed); }
  void set(double x) noexcept { value_.store(x, std::memory_order_relaxed); }
  double value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class RoleContext {
 public:
  virtual ~RoleContext() = default;

  // -- who it is -------------------------------------------------------------------------------------
  const std::string& run() const noexcept { return run_; }  ///< name of the run
  const std::string& role() const noexcept { return role_; }
  std::uint32_t index() const noexcept { return index_; }
  const std::string& path() const noexcept { return path_; }  ///< "run/role/index"
  /// Of this replica; grows with each start, wherever.
  std::uint64_t incarnation() const noexcept { return incarnation_; }
  /// Derived from (seed of the run, role, index): the same after restarts and moves.
  std::uint64_t seed() const noexcept { return seed_; }
  /// Draws of their own for each `stream`; the same in each incarnation.
  PhiloxStream random(std::uint32_t stream = 0) const {
    return PhiloxStream{seed_, stream, index_};
  }
  /// How many replicas the role has now; for elastic roles this changes.
  virtual std::uint32_t replicas() const = 0;

  // -- whom it talks to --------------------------------------------------------------------------------
  /// Over the edge of this name (by default the target role's name). An unknown name throws std::invalid_argument
  /// with those that exist.
  virtual std::shared_ptr<const Peers> peers(std::string_view edge) const = 0;
  /// A handle to this replica's own path.
  virtual caf::actor ref() const = 0;
  /// The actor: `self().send(…)`, `self().request(…)`, `self().delayed_send(…)`. Finite timeouts, `.then`.
  virtual caf::event_based_actor& self() const = 0;
  /// False: messages to `peer` would be refused now (its link's queue is full).
  virtual bool writable(const caf::actor& peer) const = 0;

  // -- what it can do ----------------------------------------------------------------------------------
  /// Logger whose lines name the path and incarnation.
  virtual spdlog::logger& log() const = 0;
  /// The number of this name; made at the first use, at most 64 per replica. The reference stays good.
  virtual RoleCounter& metric(std::string_view name) = 0;
  virtual net::TimePoint now() const = 0;
  /// True once it shall stop. Long handlers look at it. Any thread.
  virtual bool stopping() const noexcept = 0;
  /// Ends this replica normally, after the present handler: it is done.
  virtual void finish() = 0;
  /// Ends this replica as failed, after the present handler.
  virtual void fail(std::string text) = 0;
  /// Ends the whole run: done when `text` is empty, else failed.
  virtual void end_run(std::string text) = 0;
  /// Takes a snapshot after the present handler, beside those of the policy.
  virtual void save() = 0;

 protected:
  std::string run_;
  std::string role_;
  std::string path_;
  std::uint32_t index_ = 0;
  std::uint64_t incarnation_ = 0;
  std::uint64_t seed_ = 0;
};

/// Base of what authors write. An exception out of any member, the constructor included, is a failure of the replica
/// with the exception's text.
class Role {
 public:
  explicit Role(RoleContext& context) : context_(context) {}
  virtual ~Role() = default;
  Role(const Role&) = delete;
  Role& operator=(const Role&) = delete;

  virtual caf::message_handler handlers() = 0;

  /// After `restore`, before the first message. Edges are known; peers may not be up yet.
  virtual void on_start() {}
  /// After each change over one of its edges, in order.
  virtual void on_peers(const PeersChange&) {}
  /// It shall stop; everything sent to it before has been handled. True: end now. False: it calls `finish` itself,
  /// before the deadline of its role.
  virtual bool on_stop() { return true; }

  /// Its state, or nothing if it has none. Called between messages.
  virtual std::optional<net::Bytes> snapshot() { return std::nullopt; }
  virtual void restore(const net::Bytes&) {}

 protected:
  RoleContext& context() const noexcept { return context_; }

 private:
  RoleContext& context_;
};

/// A registered role type.
struct RoleType {
  std::string name;
  /// For roles that compute for long or block: a thread per replica. Otherwise replicas share the node's actor threads.
  bool own_thread = false;
  /// Whether a configuration is acceptable; the error names the key.
  std::function<expected<void>(const nlohmann::json& config)> check;
  /// May throw. `config` has passed `check`.
  std::function<std::unique_ptr<Role>(RoleContext& context, const nlohmann::json& config)> make;
};

/// Role types and message types of a process: of the program itself and of modules.
class RoleRegistry {
 public:
  /// What static registrations fill (TROUPE_ROLE, TROUPE_MESSAGE in actors/role.hpp).
  static RoleRegistry& global();

  /// ec::conflict when the name is taken, ec::invalid_argument for names that are not 1 to 64 of [a-z A-Z 0-9 _ . -].
  expected<void> add(RoleType type);
  /// Called for each node's type registry before it is frozen.
  void add_messages(std::function<expected<void>(net::TypeRegistry&)> add);

  const RoleType* find(std::string_view name) const;
  std::vector<std::string> names() const;
  expected<void> register_messages(net::TypeRegistry& types) const;

  /// Loads a shared module and runs its `troupe_module` (actors/role.hpp), which registers into this registry.
  /// ec::not_found, ec::conflict (built against another version), ec::system_error with the loader's words.
  expected<void> load_module(const std::string& file);

 private:
  std::map<std::string, RoleType, std::less<>> types_;
  std::vector<std::function<expected<void>(net::TypeRegistry&)>> messages_;
};

/// Seed of a replica (Philox of the run's seed, the role's name and the index).
std::uint64_t replica_seed(std::uint64_t run_seed, std::string_view role, std::uint32_t index);

}  // namespace troupe
