// `troupe drain`: tells a node to finish its work and leave.
#include <chrono>
#include <iostream>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "net/http_client.hpp"
#include "runtime/cli/api_client.hpp"
#include "runtime/cli/app.hpp"
#include "runtime/cli/signals.hpp"
#include "runtime/cli/status_table.hpp"
#include "runtime/config.hpp"

namespace troupe::cli {

namespace {

using nlohmann::json;
using std::chrono::milliseconds;

struct Arguments {
  ApiArguments api;
  std::string node;
  std::string deadline;
  bool wait = false;
};

std::string text_in(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && found->is_string()
             ? one_line(found->get_ref<const std::string&>(), 200)
             : "";
}

/// The state of the node `id`: "left" when nobody knows it any more.
std::string state_of(const json& cluster, const std::string& id, bool& is_head) {
  for (const char* list : {"nodes", "ended"}) {
    if (!cluster.is_object() || !cluster.contains(list) || !cluster[list].is_array()) {
      continue;
    }
    for (const auto& member : cluster[list]) {
      if (text_in(member, "id") == id) {
        is_head = member.contains("head") && member["head"] == true;
        return text_in(member, "state");
      }
    }
  }
  return "left";
}

void wait_until_left(const ApiClient& client, const std::string& id, milliseconds bound) {
  const auto end = std::chrono::steady_clock::now() + bound;
  error problem;
  std::string state = "draining";
  bool is_head = false;
  BlockedSignals signals;
  while (std::chrono::steady_clock::now() < end) {
    const auto body = client.get("/api/v1/cluster");
    if (body) {
      problem = {};
      state = state_of(json::parse(*body, nullptr, false), id, is_head);
      if (state == "left") {
        std::cout << "node " << id << " has left\n";
        return;
      }
      if (state == "down") {
        give_up({ec::actor_down, "node " + id + " went down before it had drained"});
      }
    } else if (is_head && body.error() == ec::refused) {
      std::cout << "node " << id << " was the head; it has ended\n";
      return;
    } else {
      problem = body.error();  // the head may be back soon
    }
    if (signals.wait(milliseconds{200})) {
      give_up({ec::closed, "no longer waiting; node " + id + " goes on draining"});
    }
  }
  give_up({ec::timeout, "node " + id + " has not left within " + format_duration(bound) +
                            ", it is " + state +
                            (problem ? "; last answer: " + problem.text() : "")});
}

void run_drain(const Arguments& arguments) {
  const auto client = ApiClient::make(arguments.api);
  if (!client) {
    give_up(client.error());
  }
  // Beyond the deadline a node is to leave anyhow; without one the broker's applies, which we do not know.
  milliseconds bound = std::chrono::minutes{10};
  std::string target = "/api/v1/nodes/" + net::percent_encode(arguments.node) + "/drain";
  if (!arguments.deadline.empty()) {
    const auto deadline = parse_duration(arguments.deadline);
    if (!deadline) {
      give_up({ec::invalid_argument, "--deadline: " + deadline.error().text()}, 2);
    }
    target += "?deadline_ms=" + std::to_string(deadline->count());
    bound = *deadline + std::chrono::seconds{30};
  }
  const auto answer = client->post(target);
  if (!answer) {
    give_up(answer.error());
  }
  const auto accepted = json::parse(*answer, nullptr, false);
  const std::string id = text_in(accepted, "node");
  if (id.empty()) {
    give_up({ec::malformed, client->address() + ": the answer does not name a node"});
  }
  const std::string text = text_in(accepted, "text");
  std::cout << "node " << id << ": " << (text.empty() ? "draining" : text) << std::endl;
  if (arguments.wait) {
    wait_until_left(*client, id, bound);
  }
}

}  // namespace

void add_drain_command(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand("drain", "Let a node finish its work and leave its cluster");
  command->add_option("NODE", arguments->node, "Its name, address, or the start of its id")
      ->required()
      ->check([](const std::string& text) { return text.empty() ? "must not be empty" : ""; });
  arguments->api.add_to(*command);
  command->add_option("--deadline", arguments->deadline,
                      "How long its work may take, such as 30s [the cluster's drain_deadline]");
  command->add_flag("--wait", arguments->wait, "Return when it has left");
  command->callback([arguments] { run_drain(*arguments); });
}

}  // namespace troupe::cli
