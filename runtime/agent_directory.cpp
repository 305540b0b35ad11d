// Paths: hosting them here, finding them elsewhere, and keeping references pointed at the right actor.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "net/caf_error.hpp"
#include "runtime/actor_ref.hpp"
#include "runtime/agent_actor.hpp"

namespace troupe {

namespace {

constexpr auto directory_timeout = std::chrono::seconds{2};
constexpr auto find_again = std::chrono::milliseconds{50};
constexpr auto expire_again = std::chrono::milliseconds{500};

}  // namespace

// -- hosting -----------------------------------------------------------------------------------------------

void AgentActor::host(Hosting hosting, std::function<void(expected<DirectoryEntry>)> tell) {
  if (phase_ != AgentPhase::member) {
    tell(fail(ec::session_lost, "this node is not a member now: waiting for " + waiting_for_));
  } else if (draining_) {
    tell(fail(ec::closed, "this node is draining and takes no new work"));
  } else if (hosting.exclusive && !lease_holds()) {
    tell(fail(ec::session_lost, "this node holds no lease now, which exclusive paths need"));
  } else if (hosted_.count(hosting.path) != 0) {
    tell(fail(ec::conflict, "\"" + hosting.path + "\" is hosted here already"));
  } else if (std::any_of(ending_.begin(), ending_.end(), [&hosting](const Ending& one) {
               return one.entry.path == hosting.path;
             })) {
    tell(fail(ec::would_block,
              "what this node hosted as \"" + hosting.path + "\" has not ended yet; try again"));
  } else {
    claim(std::move(hosting), std::move(tell));
  }
}

void AgentActor::claim(Hosting hosting, std::function<void(expected<DirectoryEntry>)> tell) {
  ClaimRequest ask{hosting.path, config_.self.id, incarnation_, hosting.exclusive, 0};
  const auto incarnation = incarnation_;
  request(broker_, directory_timeout, std::move(ask))
      .then(
          [this, hosting, tell, incarnation](const ClaimReply& reply) {
            if (reply.code != ec::none) {
              tell(fail(reply.code, reply.text));
              return;
            }
            // What was granted to an incarnation that is over, or came after the lease, is not ours.
            if (incarnation != incarnation_ || draining_ || (hosting.exclusive && !lease_holds()) ||
                hosted_.count(hosting.path) != 0) {
              release(reply.entry);
              tell(fail(ec::session_lost,
                        "the node was fenced, drained or lost its lease meanwhile"));
              return;
            }
            hosted_[hosting.path] = Hosted{hosting, reply.entry};
            monitor(hosting.actor);
            mesh_.publish(hosting.path, hosting.actor);
            publish_status();
            on_entry(reply.entry);
            tell(reply.entry);
          },
          [this, tell, path = hosting.path, incarnation](const caf::error& reason) {
            if (incarnation == incarnation_) {
              // It may have been granted all the same.
              DirectoryEntry unknown;
              unknown.path = path;
              unknown.incarnation = incarnation;
              release(unknown);
            }
            tell(fail(to_error(reason).code(), "the broker did not answer the claim of \"" + path +
                                                   "\": " + describe(reason)));
          });
}

/// After a return to the broker: what is hosted here must still be ours by its books.
void AgentActor::reclaim_all() {
  for (const auto& entry : std::exchange(to_release_, {})) {
    release(entry);
  }
  for (const auto& [path, hosted] : hosted_) {
    const auto generation = hosted.entry.generation;
    request(broker_, directory_timeout,
            ClaimRequest{path, config_.self.id, incarnation_, hosted.hosting.exclusive, generation})
        .then(
            [this, path = path, generation](const ClaimReply& reply) {
              const auto mine = hosted_.find(path);
              if (mine == hosted_.end() || mine->second.entry.generation != generation) {
                return;
              }
              if (reply.code == ec::none && reply.entry.generation == generation) {
                return;
              }
              end_hosted(path, {ec::closed,
                                "the directory has \"" + path + "\" elsewhere: " + reply.text});
            },
            [](const caf::error&) {});  // the next return asks again
  }
}

void AgentActor::unhost(const std::string& path) {
  const auto found = hosted_.find(path);
  if (found != hosted_.end()) {
    const auto entry = found->second.entry;
    demonitor(found->second.hosting.actor);
    mesh_.unpublish(path);
    hosted_.erase(found);
    release(entry);
    drain_progress();
  }
}

/// Ends the actor too: it may not go on.
void AgentActor::end_hosted(const std::string& path, const error& reason) {
  const auto found = hosted_.find(path);
  if (found == hosted_.end()) {
    return;
  }
  const auto hosted = found->second;
  spdlog::warn("agent: \"{}\" ends: {}", path, reason.text());
  mesh_.unpublish(path);
  hosted_.erase(found);
  send_exit(hosted.hosting.actor, make_caf_error(reason));
  if (hosted.hosting.exclusive) {
    // Given back when it has ended: it may be in the middle of something.
    ending_.push_back({hosted.hosting.actor.address(), hosted.entry});
    publish_status();
  } else {
    demonitor(hosted.hosting.actor);
    release(hosted.entry);
  }
}

bool AgentActor::on_ending_down(const caf::actor_addr& actor) {
  const auto found = std::find_if(ending_.begin(), ending_.end(),
                                  [&actor](const Ending& one) { return one.actor == actor; });
  if (found == ending_.end()) {
    return false;
  }
  const auto entry = found->entry;
  ending_.erase(found);
  if (entry.incarnation == incarnation_) {
    release(entry);
  }
  drain_progress();
  return true;
}

/// Generation 0: whichever this node holds, if any.
void AgentActor::release(const DirectoryEntry& entry) {
  publish_status();
  if (entry.generation == 0 && hosted_.count(entry.path) != 0) {
    return;
  }
  if (phase_ != AgentPhase::member) {
    if (entry.incarnation == incarnation_) {
      to_release_.push_back(entry);
    }
    return;
  }
  request(broker_, directory_timeout, ReleaseRequest{entry.path, config_.self.id, entry.generation})
      .then([](const CommandReply&) {},
            [this, entry](const caf::error&) {
              if (entry.incarnation == incarnation_) {
                to_release_.push_back(entry);
              }
            });
}

// -- resolving ---------------------------------------------------------------------------------------------

AgentActor::Cached& AgentActor::cached(const std::string& path) { return paths_[path]; }

bool AgentActor::wanted(const Cached& entry) {
  return !entry.waiting.empty() ||
         std::any_of(entry.refs.begin(), entry.refs.end(),
                     [](const auto& ref) { return ref.lock() != nullptr; });
}

void AgentActor::resolve(const std::string& path, net::Duration timeout,
                         std::function<void(expected<caf::actor>)> tell) {
  auto& entry = cached(path);
  if (entry.actor) {
    tell(entry.actor);
    return;
  }
  entry.waiting.push_back({now() + timeout, std::move(tell)});
  later(timeout, [this, path] { expire_waiting(path); });
  ask_directory(path);
}

void AgentActor::add_ref(const std::string& path, const caf::weak_actor_ptr& ref) {
  auto& entry = cached(path);
  auto& refs = entry.refs;
  if ((refs.size() & (refs.size() - 1)) == 0) {
    // Now and then, so that references that come and go do not pile up.
    refs.erase(std::remove_if(refs.begin(), refs.end(),
                              [](const auto& one) { return one.lock() == nullptr; }),
               refs.end());
  }
  refs.push_back(ref);
  if (const auto strong = ref.lock(); strong && entry.actor) {
    static_cast<RefProxy*>(strong->get())->set_target(entry.actor);
  }
  ask_directory(path);
}

/// A reference has its first message that waits.
void AgentActor::want_target(const std::string& path) {
  auto& entry = cached(path);
  if (entry.actor) {
    set_target(path, entry, entry.actor);
    return;
  }
  ask_directory(path);
  later(expire_again, [this, path] { expire_waiting(path); });
}

void AgentActor::ask_directory(const std::string& path) {
  auto& entry = cached(path);
  if (entry.asking || phase_ != AgentPhase::member) {
    return;  // asked again after the next join
  }
  if (entry.known) {
    find_target(path);
    return;
  }
  entry.asking = true;
  const auto broker = broker_;
  request(broker_, directory_timeout, ResolveRequest{path, config_.self.id})
      .then(
          [this, path, broker](const DirectoryUpdate& update) {
            auto& answered = cached(path);
            answered.asking = false;
            if (broker != broker_) {
              ask_directory(path);
              return;
            }
            answered.known = true;
            for (const auto& answer : update.entries) {
              on_entry(answer);
            }
            find_target(path);
          },
          [this, path](const caf::error&) {
            cached(path).asking = false;
            later(find_again, [this, path] { ask_directory(path); });
          });
}

void AgentActor::on_entry(const DirectoryEntry& entry) {
  const auto found = paths_.find(entry.path);
  if (found == paths_.end() || entry.epoch <= found->second.entry.epoch) {
    return;
  }
  auto& mine = found->second;
  const bool moved = mine.entry.node != entry.node || mine.entry.generation != entry.generation;
  mine.entry = entry;
  if (moved) {
    set_target(entry.path, mine, nullptr);
    find_target(entry.path);
  }
}

void AgentActor::find_target(const std::string& path) {
  auto& entry = cached(path);
  if (entry.finding || entry.actor || !entry.entry.node) {
    return;
  }
  if (entry.entry.node == config_.self.id) {
    const auto mine = hosted_.find(path);
    if (mine != hosted_.end()) {
      set_target(path, entry, mine->second.hosting.actor);
    }
    return;
  }
  entry.finding = true;
  const auto epoch = entry.entry.epoch;
  const NodeId node = entry.entry.node;
  const auto found = here(std::function{[this, path, epoch](expected<caf::actor> actor) {
    on_target(path, epoch, std::move(actor));
  }});
  const auto linked = mesh_.linked();
  if (std::count(linked.begin(), linked.end(), node) > 0) {
    mesh_.find(node, path, directory_timeout, found);
    return;
  }
  mesh_.connect(entry.entry.address, [mesh = &mesh_, node, path, found](expected<NodeId> peer) {
    if (!peer) {
      found(fail(peer.error()));
    } else if (*peer != node) {
      found(fail(ec::node_unreachable, "another node answers there"));
    } else {
      mesh->find(node, path, directory_timeout, found);
    }
  });
}

void AgentActor::on_target(const std::string& path, std::uint64_t epoch,
                           expected<caf::actor> found) {
  auto& entry = cached(path);
  entry.finding = false;
  if (epoch != entry.entry.epoch) {
    find_target(path);
  } else if (found) {
    monitor(*found);
    set_target(path, entry, *found);
  } else if (!entry.waiting.empty() || !entry.refs.empty()) {
    // Claimed and not published yet, or the node is about to be declared down.
    later(find_again, [this, path] { find_target(path); });
  }
}

void AgentActor::set_target(const std::string& path, Cached& entry, const caf::actor& actor) {
  entry.actor = actor;
  if (actor) {
    auto waiting = std::exchange(entry.waiting, {});
    for (const auto& one : waiting) {
      one.done(actor);
    }
  }
  auto& refs = entry.refs;
  bool wait = false;
  for (auto it = refs.begin(); it != refs.end();) {
    if (const auto strong = it->lock()) {
      auto* proxy = static_cast<RefProxy*>(strong->get());
      proxy->set_target(actor);
      wait = wait || proxy->waiting() > 0;
      ++it;
    } else {
      it = refs.erase(it);
    }
  }
  if (wait) {
    later(expire_again, [this, path] { expire_waiting(path); });
  }
}

void AgentActor::expire_waiting(const std::string& path) {
  const auto found = paths_.find(path);
  if (found == paths_.end()) {
    return;
  }
  auto& entry = found->second;
  const auto time = now();
  std::vector<Waiting> late;
  for (auto it = entry.waiting.begin(); it != entry.waiting.end();) {
    if (it->until <= time) {
      late.push_back(std::move(*it));
      it = entry.waiting.erase(it);
    } else {
      ++it;
    }
  }
  bool wait = false;
  for (const auto& ref : entry.refs) {
    if (const auto strong = ref.lock()) {
      wait = static_cast<RefProxy*>(strong->get())->expire(time) || wait;
    }
  }
  if (wait) {
    later(expire_again, [this, path] { expire_waiting(path); });
  }
  // Names that nobody hosts are without number.
  if (!entry.actor && !entry.entry.node && !entry.asking && !entry.finding && !wanted(entry)) {
    paths_.erase(found);
  }
  for (const auto& one : late) {
    one.done(fail(ec::not_found, "nobody hosts \"" + path + "\""));
  }
}

void AgentActor::forget_targets_on(const NodeId& node) {
  for (auto& [path, entry] : paths_) {
    if (entry.entry.node == node && entry.actor) {
      set_target(path, entry, nullptr);
    }
  }
}

/// A new broker does not know who is interested in what.
void AgentActor::reask_directory() {
  for (auto it = paths_.begin(); it != paths_.end();) {
    auto& entry = it->second;
    entry.known = false;
    entry.asking = false;
    if (!wanted(entry)) {
      it = paths_.erase(it);
      continue;
    }
    const auto path = it->first;
    ++it;
    ask_directory(path);
  }
}

}  // namespace troupe
