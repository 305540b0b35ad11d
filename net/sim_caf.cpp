#include <algorithm>

#include <caf/actor_system.hpp>
#include <caf/scheduler/test_coordinator.hpp>

#include "net/sim_impl.hpp"

namespace troupe::net {

namespace {

/// Jobs in a row after which an actor is taken to be sending to itself for ever.
constexpr std::size_t job_limit = 10'000'000;

}  // namespace

bool SimWorld::add_actor_system(caf::actor_system& system, std::optional<NodeId> node) {
  auto* coordinator = dynamic_cast<caf::scheduler::test_coordinator*>(&system.scheduler());
  if (coordinator == nullptr) {
    return false;
  }
  auto entry = std::make_shared<SimActorSystem>();
  entry->world_ref = impl_->ref;
  entry->system = &system;
  entry->coordinator = coordinator;
  entry->node = node ? impl_->index_of(*node) : no_node;
  entry->index = static_cast<std::uint32_t>(impl_->systems.size());
  impl_->systems.push_back(entry);
  impl_->by_node[entry->node].push_back(entry);
  impl_->arm(entry);
  impl_->mark_dirty(*entry);
  return true;
}

void SimWorld::remove_actor_system(caf::actor_system& system) { impl_->forget_system(system); }

/// The actors of a crashed node never run again: what waited for them goes, unseen. Without this
/// the destructor of the actor system would run it.
void SimWorldImpl::abandon(SimActorSystem& system) {
  auto& coordinator = *system.coordinator;
  coordinator.clock().cancel_all();
  for (std::size_t i = 0; i < job_limit && coordinator.has_job(); ++i) {
    caf::resumable* job = coordinator.jobs.front();
    coordinator.jobs.pop_front();
    intrusive_ptr_release(job);
  }
}

void SimWorldImpl::abandon_systems(std::uint32_t node) {
  const auto found = by_node.find(node);
  if (found != by_node.end()) {
    for (const auto& system : found->second) {
      abandon(*system);
      update_due(*system);
    }
  }
}

void SimWorldImpl::forget_system(caf::actor_system& system) {
  for (const auto& entry : systems) {
    if (entry->system != &system) {
      continue;
    }
    if (entry->node != no_node && !nodes[entry->node]->alive) {
      abandon(*entry);
    }
    entry->coordinator->after_next_enqueue(std::function<void()>{});
    if (entry->due) {
      due.erase({*entry->due, entry->index});
      entry->due.reset();
    }
    auto& siblings = by_node[entry->node];
    siblings.erase(std::remove(siblings.begin(), siblings.end(), entry), siblings.end());
    // The entry keeps its place, so that the indices of the others stay.
    entry->system = nullptr;
    entry->coordinator = nullptr;
  }
}

/// The coordinator tells of the next job that arrives, once.
void SimWorldImpl::arm(const std::shared_ptr<SimActorSystem>& system) {
  system->coordinator->after_next_enqueue([weak = std::weak_ptr<SimActorSystem>(system)] {
    const auto entry = weak.lock();
    if (entry && entry->world_ref->world != nullptr) {
      entry->world_ref->world->mark_dirty(*entry);
    }
  });
}

bool SimWorldImpl::runnable(const SimActorSystem& system) const {
  if (system.coordinator == nullptr) {
    return false;
  }
  return system.node == no_node || (nodes[system.node]->alive && !nodes[system.node]->paused);
}

void SimWorldImpl::mark_dirty(SimActorSystem& system) {
  if (!system.dirty) {
    system.dirty = true;
    dirty.push_back(system.index);
  }
}

/// Actors ask their clock for the time; it follows the virtual one.
void SimWorldImpl::sync_clock(SimActorSystem& system) {
  auto& clock = system.coordinator->clock();
  clock.current_time = std::max<TimePoint>(clock.current_time, now);
}

void SimWorldImpl::sync_clocks() {
  for (const auto& system : systems) {
    if (runnable(*system)) {
      sync_clock(*system);
    }
  }
}

void SimWorldImpl::before_event(std::uint32_t node) {
  const auto found = by_node.find(node);
  if (found != by_node.end()) {
    for (const auto& system : found->second) {
      if (runnable(*system)) {
        sync_clock(*system);
      }
    }
  }
}

/// Runs what the event has woken. Systems of other nodes announce themselves when they get a job.
void SimWorldImpl::after_event(std::uint32_t node) {
  const auto found = by_node.find(node);
  if (found != by_node.end()) {
    for (const auto& system : found->second) {
      mark_dirty(*system);
    }
  }
  drain_dirty();
}

void SimWorldImpl::refresh_all() {
  for (const auto& system : systems) {
    mark_dirty(*system);
  }
  drain_dirty();
}

void SimWorldImpl::drain_dirty() {
  // A job may give work to another system, hence the loop over a growing list.
  for (std::size_t i = 0; i < dirty.size(); ++i) {
    const auto system = systems[dirty[i]];
    system->dirty = false;
    if (runnable(*system)) {
      in_actors = true;
      drain(*system);
      in_actors = false;
      arm(system);
    }
    update_due(*system);
  }
  dirty.clear();
}

void SimWorldImpl::drain(SimActorSystem& system) {
  sync_clock(system);
  auto& coordinator = *system.coordinator;
  std::size_t left = job_limit;
  do {
    coordinator.clock().trigger_expired_timeouts();
    left -= std::min(left, coordinator.run(left));
  } while (left > 0 &&
           (coordinator.has_job() || (coordinator.clock().has_pending_timeout() &&
                                      coordinator.clock().schedule().begin()->first <= now)));
  if (left == 0) {
    log("world", "an actor system never runs out of jobs, giving up on this turn");
    same_instant = config.livelock + 1;
  }
}

/// Notes when the system's clock has its next timeout.
void SimWorldImpl::update_due(SimActorSystem& system) {
  std::optional<TimePoint> next;
  if (runnable(system) && system.coordinator->clock().has_pending_timeout()) {
    next = system.coordinator->clock().schedule().begin()->first;
  }
  if (next == system.due) {
    return;
  }
  if (system.due) {
    due.erase({*system.due, system.index});
  }
  if (next) {
    due.insert({*next, system.index});
  }
  system.due = next;
}

}  // namespace troupe::net
