#include "runtime/actor_ref.hpp"

#include <atomic>
#include <typeinfo>
#include <vector>

#include <caf/actor_system.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/make_actor.hpp>
#include <caf/make_message.hpp>
#include <caf/send.hpp>

#include "net/caf_error.hpp"
#include "runtime/agent_actor.hpp"

namespace troupe {

RefProxy::RefProxy(caf::actor_config& cfg, caf::actor agent, std::string path)
    : caf::actor_proxy(cfg), agent_(agent.address()), path_(std::move(path)) {}

void RefProxy::enqueue(caf::mailbox_element_ptr what, caf::execution_unit* ctx) {
  caf::strong_actor_ptr target;
  bool first = false;
  {
    std::unique_lock lock{mutex_};
    if (killed_) {
      lock.unlock();
      reject(std::move(what), make_caf_error(ec::closed, "the node of this reference has stopped"));
      return;
    }
    if (!target_ || flushing_ || !waiting_.empty()) {
      if (waiting_.size() >= max_waiting) {
        lock.unlock();
        reject(std::move(what),
               make_caf_error(ec::would_block, "too many messages wait for \"" + path_ +
                                                   "\", which nobody hosts at the moment"));
        return;
      }
      first = waiting_.empty() && !target_;
      waiting_.push_back({home_system().clock().now(), std::move(what)});
    } else {
      target = target_;
    }
  }
  if (target) {
    forward(target, std::move(what), ctx);
  } else if (first) {
    if (const auto agent = caf::actor_cast<caf::actor>(agent_)) {
      auto* actor = static_cast<AgentActor*>(caf::actor_cast<caf::abstract_actor*>(agent));
      caf::anon_send(agent, AgentCall{[actor, path = path_] { actor->want_target(path); }});
    }
  }
}

void RefProxy::forward(const caf::strong_actor_ptr& target, caf::mailbox_element_ptr what,
                       caf::execution_unit* ctx) {
  target->enqueue(std::move(what), ctx);
}

void RefProxy::reject(caf::mailbox_element_ptr what, const caf::error& reason) {
  if (what->sender && what->mid.is_request()) {
    what->sender->enqueue(nullptr, what->mid.response_id(), caf::make_message(reason), nullptr);
  }
}

void RefProxy::set_target(const caf::actor& target) {
  {
    const std::lock_guard lock{mutex_};
    target_ = caf::actor_cast<caf::strong_actor_ptr>(target);
    if (!target_ || waiting_.empty() || flushing_) {
      return;
    }
    flushing_ = true;
  }
  // In order: newcomers queue up behind what waits until nothing does.
  for (;;) {
    caf::mailbox_element_ptr next;
    caf::strong_actor_ptr to;
    {
      const std::lock_guard lock{mutex_};
      if (waiting_.empty() || !target_) {
        flushing_ = false;
        return;
      }
      next = std::move(waiting_.front().element);
      waiting_.pop_front();
      to = target_;
    }
    forward(to, std::move(next), nullptr);
  }
}

bool RefProxy::expire(net::TimePoint now) {
  std::vector<caf::mailbox_element_ptr> late;
  bool left = false;
  {
    const std::lock_guard lock{mutex_};
    while (!flushing_ && !waiting_.empty() && now - waiting_.front().since >= max_wait) {
      late.push_back(std::move(waiting_.front().element));
      waiting_.pop_front();
    }
    left = !waiting_.empty();
  }
  for (auto& element : late) {
    reject(std::move(element),
           make_caf_error(ec::actor_down, "nobody hosted \"" + path_ + "\" within " +
                                              std::to_string(max_wait / std::chrono::seconds{1}) +
                                              " s; the message was not delivered"));
  }
  return left;
}

std::size_t RefProxy::waiting() const {
  const std::lock_guard lock{mutex_};
  return waiting_.size();
}

void RefProxy::kill_proxy(caf::execution_unit* ctx, caf::error reason) {
  std::deque<Waiting> waiting;
  {
    const std::lock_guard lock{mutex_};
    killed_ = true;
    target_ = nullptr;
    waiting.swap(waiting_);
  }
  for (auto& entry : waiting) {
    reject(std::move(entry.element), reason);
  }
  cleanup(std::move(reason), ctx);
}

caf::actor make_actor_ref(const caf::actor& agent, const std::string& path) {
  auto& system = agent->home_system();
  caf::actor_config config;
  return caf::make_actor<RefProxy, caf::actor>(system.next_actor_id(), system.node(), &system,
                                               config, agent, path);
}

RefProxy* as_actor_ref(const caf::strong_actor_ptr& handle) {
  if (!handle) {
    return nullptr;
  }
  auto* actor = handle->get();
  return typeid(*actor) == typeid(RefProxy) ? static_cast<RefProxy*>(actor) : nullptr;
}

}  // namespace troupe
