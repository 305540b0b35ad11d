// Why: an author keeps a handle to a path, not to an actor of one incarnation on one node. An actor reference is such a
// handle: an ordinary `caf::actor` whose messages go straight to whoever hosts the path now. While nobody does, they
// wait, bounded in number and time; then requests fail with the reason.
// Thread-safety: any thread, as CAF demands of actors.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <string>

#include <caf/actor.hpp>
#include <caf/actor_proxy.hpp>

#include "net/error.hpp"
#include "net/executor.hpp"

namespace troupe {

/// The proxy behind `Agent::ref`. A monitor on it fires when the reference is ended (the node stops), not when a
/// target dies: the path outlives its targets.
class RefProxy final : public caf::actor_proxy {
 public:
  static constexpr std::size_t max_waiting = 1024;
  static constexpr net::Duration max_wait = std::chrono::seconds{5};

  RefProxy(caf::actor_config& cfg, caf::actor agent, std::string path);

  const std::string& path() const noexcept { return path_; }

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit* ctx) override;
  void kill_proxy(caf::execution_unit* ctx, caf::error reason) override;
  const char* name() const override { return "ref"; }

  // -- for the agent ---------------------------------------------------------------------------------

  /// Sends what waits to `target` and everything after it; null: from now on messages wait.
  void set_target(const caf::actor& target);

  /// Fails what has waited since before `now - max_wait`. True when something still waits.
  bool expire(net::TimePoint now);

  std::size_t waiting() const;

 private:
  struct Waiting {
    net::TimePoint since;
    caf::mailbox_element_ptr element;
  };

  static void forward(const caf::strong_actor_ptr& target, caf::mailbox_element_ptr what,
                      caf::execution_unit* ctx);
  static void reject(caf::mailbox_element_ptr what, const caf::error& reason);

  const caf::actor_addr agent_;
  const std::string path_;
  mutable std::mutex mutex_;
  caf::strong_actor_ptr target_;
  std::deque<Waiting> waiting_;
  bool flushing_ = false;
  bool killed_ = false;
};

caf::actor make_actor_ref(const caf::actor& agent, const std::string& path);

/// The reference behind a handle, or null for any other actor.
RefProxy* as_actor_ref(const caf::strong_actor_ptr& handle);

}  // namespace troupe
