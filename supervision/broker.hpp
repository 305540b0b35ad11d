// Why: the one actor that owns the membership view. It feeds `BrokerCore`, makes each batch of changes
// durable, and only then answers and tells the members: nobody ever acts on what a crash could take back.
// Thread-safety: `start_broker` from any thread; the handle is an ordinary actor.
#pragma once

#include <functional>
#include <memory>

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>

#include "supervision/broker_core.hpp"
#include "supervision/broker_store.hpp"

namespace troupe {

struct BrokerOptions {
  BrokerCoreConfig core;
  std::shared_ptr<BrokerStore> store;
  /// Milliseconds since 1970; empty: the system's clock.
  std::function<std::int64_t()> wall_ms;
  /// On a thread of its own, because storing blocks. Simulations run it on their scheduler.
  bool detached = true;
  /// The broker ends by itself: the store failed, or a newer broker runs the cluster. Called once, on its thread.
  std::function<void(const error&)> on_end;
};

/// Counters for metrics, readable from any thread.
struct BrokerCounters {
  std::atomic<std::uint64_t> batches{0};
  std::atomic<std::uint64_t> member_changes{0};
  std::atomic<std::uint64_t> messages_sent{0};
  std::atomic<std::uint64_t> snapshots_sent{0};
  std::atomic<std::uint64_t> refused_joins{0};
  std::atomic<std::uint64_t> tombstones{0};
  std::atomic<std::uint64_t> directory_paths{0};
};

struct Broker {
  caf::actor actor;
  BrokerInfo info;
  std::shared_ptr<const BrokerCounters> counters;

  /// Ends the actor; exit messages do not, because any peer can send one.
  void stop() const;
};

/// Loads the state, begins a term and starts the actor; it still has to be published (net::Mesh) as
/// `broker_actor_name` on the control lane. Errors: those of the store.
expected<Broker> start_broker(caf::actor_system& system, BrokerOptions options);

}  // namespace troupe
