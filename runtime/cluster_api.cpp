#include "runtime/cluster_api.hpp"

#include <charconv>

#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>

#include "net/caf_error.hpp"
#include "runtime/agent_actor.hpp"
#include "runtime/cluster_json.hpp"
#include "runtime/metrics.hpp"
#include "supervision/membership_messages.hpp"

namespace troupe {

namespace {

constexpr const char* json_type = "application/json";
constexpr auto broker_timeout = std::chrono::milliseconds{1500};
constexpr std::uint64_t most_events = 10'000;

net::HttpResponse json(std::string body, unsigned status = 200) {
  return {status, json_type, std::move(body), {{"Cache-Control", "no-store"}}};
}

net::HttpResponse failed(const error& reason) {
  return json(error_json(reason), http_status_of(reason.code()));
}

expected<std::uint64_t> number(const net::HttpRequest& request, std::string_view key,
                               std::uint64_t otherwise) {
  const auto text = request.query_value(key);
  if (!text) {
    return otherwise;
  }
  std::uint64_t value = 0;
  const auto [end, problem] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (problem != std::errc{} || end != text->data() + text->size()) {
    return fail(ec::invalid_argument,
                "query parameter " + std::string{key} + " must be a whole number");
  }
  return value;
}

/// Browsers send Origin with requests that change something; another site may not command this cluster.
bool from_another_site(const net::HttpRequest& request) {
  const auto origin = request.header("Origin");
  if (!origin) {
    return false;
  }
  const auto host = request.header("Host");
  const auto at = origin->find("://");
  return !host || at == std::string::npos || origin->substr(at + 3) != *host;
}

/// A request to the agent that the worker makes; never leaves the process.
struct ApiQuestion {
  std::function<void(caf::event_based_actor&)> ask;
};

}  // namespace

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ApiQuestion)

namespace troupe {

namespace {

/// Runs what it is sent; asks the agent on behalf of requests. Not a scheduled actor: user code may keep all threads
/// of the actor system busy.
caf::behavior api_worker(caf::event_based_actor* self) {
  self->set_down_handler([](caf::down_msg&) {});
  self->set_default_handler(caf::drop);
  return {[](const AgentCall& call) { call.fn(); },
          [self](const ApiQuestion& question) { question.ask(*self); }};
}

}  // namespace

std::shared_ptr<ClusterApi> ClusterApi::open(Node& node, std::shared_ptr<Agent> agent,
                                             std::shared_ptr<ComputePool> compute,
                                             std::shared_ptr<const BrokerCounters> broker) {
  std::shared_ptr<ClusterApi> api{
      new ClusterApi(node, std::move(agent), std::move(compute), std::move(broker))};
  api->add_routes();
  return api;
}

ClusterApi::ClusterApi(Node& node, std::shared_ptr<Agent> agent,
                       std::shared_ptr<ComputePool> compute,
                       std::shared_ptr<const BrokerCounters> broker)
    : node_(node),
      agent_(std::move(agent)),
      compute_(std::move(compute)),
      broker_(std::move(broker)) {}

void ClusterApi::add_routes() {
  node_.transport().endpoint().add_route(
      "GET", "/readyz", [weak = weak_from_this()](const net::HttpRequest&) {
        const auto self = weak.lock();
        return self ? self->ready() : net::HttpResponse{503, "text/plain", "stopping\n", {}};
      });
  route("GET", "/api/v1/cluster", [this](const auto&, const auto& respond) { cluster(respond); });
  route("GET", "/api/v1/events",
        [this](const auto& request, const auto& respond) { events(request, respond); });
  route("POST", "/api/v1/nodes/*",
        [this](const auto& request, const auto& respond) { node_command(request, respond); });
  route("GET", "/metrics", [this](const auto&, const auto& respond) {
    respond({200,
             "text/plain; version=0.0.4; charset=utf-8",
             metrics_text(node_, *agent_, compute_.get(), broker_.get()),
             {}});
  });
}

void ClusterApi::route(const std::string& method, const std::string& path, Work work) {
  node_.transport().endpoint().add_async_route(
      method, path,
      [weak = weak_from_this(), work = std::move(work)](net::HttpRequest request,
                                                        net::HttpResponder respond) {
        const auto self = weak.lock();
        const bool taken = self && self->run([self, work, request = std::move(request), respond] {
          work(request, respond);
        });
        if (!taken) {
          respond(failed({ec::closed, "this node is stopping"}));
        }
      });
}

bool ClusterApi::run(std::function<void()> fn) {
  const std::lock_guard lock{mutex_};
  if (stopped_) {
    return false;
  }
  if (!worker_) {
    worker_ = node_.system().spawn<caf::detached>(api_worker);
  }
  caf::anon_send(worker_, AgentCall{std::move(fn)});
  return true;
}

void ClusterApi::stop() {
  const std::lock_guard lock{mutex_};
  stopped_ = true;
  if (worker_) {
    caf::anon_send_exit(worker_, caf::exit_reason::user_shutdown);
    worker_ = nullptr;
  }
}

net::HttpResponse ClusterApi::ready() const {
  const auto status = agent_->status();
  if (status.phase == AgentPhase::member && !status.draining) {
    return {200, "text/plain; charset=utf-8", "ready\n", {}};
  }
  std::string why = status.draining ? "draining" : std::string{to_string(status.phase)};
  if (!status.waiting_for.empty() && !status.draining) {
    why += ", waiting for " + status.waiting_for;
  }
  return {503, "text/plain; charset=utf-8", why + "\n", {}};
}

void ClusterApi::cluster(const net::HttpResponder& respond) {
  const auto view = agent_->view();
  if (view->live().empty()) {
    respond(failed({ec::node_unreachable, "this node has not joined a cluster: waiting for " +
                                              agent_->status().waiting_for}));
    return;
  }
  respond(json(cluster_json(*view)));
}

void ClusterApi::events(const net::HttpRequest& request, const net::HttpResponder& respond) {
  const auto after = number(request, "after", 0);
  const auto limit = number(request, "limit", 1000);
  if (!after || !limit) {
    respond(failed(!after ? after.error() : limit.error()));
    return;
  }
  const EventsRequest order{*after, static_cast<std::uint32_t>(std::min(*limit, most_events))};
  const std::lock_guard lock{mutex_};
  caf::anon_send(
      worker_, ApiQuestion{[respond, agent = agent_->actor(), order](caf::event_based_actor& self) {
        self.request(agent, broker_timeout, order)
            .then([respond](const EventsReply& reply) { respond(json(events_json(reply.events))); },
                  [respond](const caf::error& reason) { respond(failed(to_error(reason))); });
      }});
}

void ClusterApi::node_command(const net::HttpRequest& request, const net::HttpResponder& respond) {
  constexpr std::string_view prefix = "/api/v1/nodes/";
  constexpr std::string_view verb = "/drain";
  const std::string_view path = request.path;
  if (path.size() <= prefix.size() + verb.size() || !path.ends_with(verb)) {
    respond(failed({ec::not_found, "POST knows /api/v1/nodes/NODE/drain only"}));
    return;
  }
  if (from_another_site(request)) {
    respond(failed({ec::unauthorized, "requests from other sites are refused"}));
    return;
  }
  const auto deadline = number(request, "deadline_ms", 0);
  constexpr std::uint64_t longest = std::uint64_t{7} * 24 * 3600 * 1000;
  if (!deadline || *deadline > longest) {
    respond(failed(!deadline ? deadline.error()
                             : error{ec::invalid_argument, "deadline_ms must be below a week"}));
    return;
  }
  DrainRequest order;
  order.node = path.substr(prefix.size(), path.size() - prefix.size() - verb.size());
  order.deadline_ms = static_cast<std::int64_t>(*deadline);
  order.reason = "ordered by " + request.peer;
  const std::lock_guard lock{mutex_};
  caf::anon_send(
      worker_, ApiQuestion{[respond, agent = agent_->actor(), order](caf::event_based_actor& self) {
        self.request(agent, broker_timeout, order)
            .then(
                [respond](const CommandReply& reply) {
                  if (reply.code == ec::none) {
                    respond(json(accepted_json(reply.node, reply.text)));
                  } else {
                    respond(failed({reply.code, reply.text}));
                  }
                },
                [respond](const caf::error& reason) { respond(failed(to_error(reason))); });
      }});
}

}  // namespace troupe
