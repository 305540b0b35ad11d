#include "net/gateway.hpp"

#include <set>

#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>
#include <nlohmann/json.hpp>

#include "net/caf_error.hpp"

namespace troupe::net {

namespace {

using nlohmann::json;

constexpr std::size_t max_open_requests = 64;  // of one client
constexpr auto request_timeout = std::chrono::seconds{30};

json error_json(const error& reason) {
  return {{"code", std::string{to_string(reason.code())}}, {"text", reason.text()}};
}

expected<caf::message> message_from(const TypeRegistry& registry, const std::string& type,
                                    const json& body) {
  if (type == "string" && body.is_string()) {
    return caf::make_message(body.get<std::string>());
  }
  if (type == "int" && body.is_number_integer()) {
    return caf::make_message(body.get<std::int64_t>());
  }
  if (type == "float" && body.is_number()) {
    return caf::make_message(body.get<double>());
  }
  if (type == "bool" && body.is_boolean()) {
    return caf::make_message(body.get<bool>());
  }
  const TypeInfo* info = registry.find_name(type);
  if (info == nullptr || !info->from_json) {
    return fail(ec::unknown_type, "\"" + type +
                                      "\" is not a type with a JSON form, or does not fit "
                                      "the body");
  }
  return info->from_json(body.dump());
}

template <class T>
bool plain_json(const caf::message& content, const char* type, json& out) {
  if (!content.match_elements<T>()) {
    return false;
  }
  out["type"] = type;
  out["body"] = content.get_as<T>(0);
  return true;
}

void message_to(const TypeRegistry& registry, const caf::message& content, json& out) {
  if (content.empty()) {
    out["type"] = "none";
    return;
  }
  if (plain_json<std::string>(content, "string", out) ||
      plain_json<std::int64_t>(content, "int", out) ||
      plain_json<std::uint64_t>(content, "int", out) ||
      plain_json<std::int32_t>(content, "int", out) || plain_json<bool>(content, "bool", out) ||
      plain_json<double>(content, "float", out) || plain_json<float>(content, "float", out)) {
    return;
  }
  const TypeInfo* info = content.size() == 1 ? registry.find(content.type(0)) : nullptr;
  if (info != nullptr && info->to_json) {
    if (auto text = info->to_json(content.get(0))) {
      out["type"] = info->name;
      out["body"] = json::parse(*text, nullptr, false);
      return;
    }
  }
  out["error"] = error_json({ec::unknown_type, "the answer has no JSON form"});
}

// One client: an actor, because the answers must come to somebody.
class Session : public caf::event_based_actor {
 public:
  Session(caf::actor_config& cfg, std::shared_ptr<WebSocketSession> socket,
          const TypeRegistry& registry)
      : caf::event_based_actor(cfg), socket_(std::move(socket)), registry_(registry) {}

  caf::behavior make_behavior() override {
    set_down_handler([](caf::scheduled_actor*, caf::down_msg&) {});
    set_default_handler(caf::drop);
    return {
        [this](const caf::actor& target, const caf::message& content, const std::string& id) {
          ask(target, content, json::parse(id, nullptr, false));
        },
    };
  }

  void on_exit() override { socket_->close(1001, "the node is shutting down"); }

 private:
  void ask(const caf::actor& target, const caf::message& content, const json& id) {
    if (id.is_null()) {
      send(target, content);
      return;
    }
    if (open_ >= max_open_requests) {
      answer(id, {{"error", error_json({ec::would_block, "too many open requests"})}});
      return;
    }
    ++open_;
    request(target, request_timeout, content)
        .then(
            [this, id](const caf::message& result) {
              --open_;
              json out;
              message_to(registry_, result, out);
              answer(id, std::move(out));
            },
            [this, id](const caf::error& reason) {
              --open_;
              answer(id, {{"error", error_json(to_error(reason))}});
            });
  }

  void answer(const json& id, json out) {
    out["id"] = id;
    socket_->send_text(out.dump(-1, ' ', false, json::error_handler_t::replace));
  }

  std::shared_ptr<WebSocketSession> socket_;
  const TypeRegistry& registry_;
  std::size_t open_ = 0;
};

class GatewayImpl final : public Gateway, public std::enable_shared_from_this<GatewayImpl> {
 public:
  GatewayImpl(Mesh& mesh, caf::actor_system& system, const TypeRegistry& registry)
      : mesh_(mesh), system_(system), registry_(registry) {}

  void accept(const std::shared_ptr<WebSocketSession>& socket) {
    caf::actor session;
    {
      const std::lock_guard lock{mutex_};
      if (closed_) {
        socket->close(1001, "the node is shutting down");
        return;
      }
      session = system_.spawn<Session>(socket, registry_);
      sessions_.insert(session);
    }
    const std::weak_ptr<WebSocketSession> weak = socket;
    socket->on_text([self = weak_from_this(), weak, session](std::string text) {
      const auto gateway = self.lock();
      const auto client = weak.lock();
      if (gateway && client) {
        gateway->on_text(client, session, text);
      }
    });
    socket->on_close([self = weak_from_this(), session] {
      caf::anon_send_exit(session, caf::exit_reason::user_shutdown);
      if (const auto gateway = self.lock()) {
        const std::lock_guard lock{gateway->mutex_};
        gateway->sessions_.erase(session);
      }
    });
  }

  void close() override {
    std::set<caf::actor> sessions;
    {
      const std::lock_guard lock{mutex_};
      closed_ = true;
      sessions.swap(sessions_);
    }
    for (const auto& session : sessions) {
      caf::anon_send_exit(session, caf::exit_reason::user_shutdown);
    }
  }

 private:
  void on_text(const std::shared_ptr<WebSocketSession>& client, const caf::actor& session,
               const std::string& text) {
    const auto in = json::parse(text, nullptr, false);
    json id;
    const auto refuse = [&](const error& reason) {
      client->send_text(json{{"id", id}, {"error", error_json(reason)}}.dump());
    };
    if (!in.is_object()) {
      refuse({ec::malformed, "expected a JSON object"});
      return;
    }
    id = in.value("id", json{});
    if (!in.contains("to") || !in["to"].is_string() || !in.contains("type") ||
        !in["type"].is_string()) {
      refuse({ec::malformed, "expected the strings \"to\" and \"type\""});
      return;
    }
    auto content = message_from(registry_, in["type"].get<std::string>(), in.value("body", json{}));
    if (!content) {
      refuse(content.error());
      return;
    }
    auto to = in["to"].get<std::string>();
    NodeId node = mesh_.self();
    if (const auto at = to.rfind('@'); at != std::string::npos) {
      const auto parsed = NodeId::parse(std::string_view{to}.substr(at + 1));
      if (!parsed) {
        refuse(parsed.error());
        return;
      }
      node = *parsed;
      to.resize(at);
    }
    mesh_.find(
        node, to, std::chrono::seconds{5},
        [session, id, content = *content,
         weak = std::weak_ptr{client}](expected<caf::actor> target) {
          if (target) {
            caf::anon_send(session, *target, content, id.dump());
          } else if (const auto socket = weak.lock()) {
            socket->send_text(json{{"id", id}, {"error", error_json(target.error())}}.dump());
          }
        });
  }

  Mesh& mesh_;
  caf::actor_system& system_;
  const TypeRegistry& registry_;
  std::mutex mutex_;
  std::set<caf::actor> sessions_;
  bool closed_ = false;
};

}  // namespace

std::shared_ptr<Gateway> Gateway::open(Mesh& mesh, caf::actor_system& system,
                                       const TypeRegistry& registry, Endpoint& endpoint,
                                       const std::string& path) {
  auto gateway = std::make_shared<GatewayImpl>(mesh, system, registry);
  endpoint.on_websocket(
      path, [weak = std::weak_ptr{gateway}](const std::shared_ptr<WebSocketSession>& socket) {
        if (const auto self = weak.lock()) {
          self->accept(socket);
        } else {
          socket->close(1001, "the node is shutting down");
        }
      });
  return gateway;
}

}  // namespace troupe::net
