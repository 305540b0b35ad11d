// `troupe events`: what has happened to the nodes of a cluster.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "runtime/cli/api_client.hpp"
#include "runtime/cli/app.hpp"
#include "runtime/cli/signals.hpp"
#include "runtime/cli/status_table.hpp"

namespace troupe::cli {

namespace {

using nlohmann::json;

struct Arguments {
  ApiArguments api;
  bool json_lines = false;
  bool follow = false;
  unsigned limit = 100;
};

std::string text_in(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string()
             ? one_line(found->get_ref<const std::string&>(), 300)
             : "";
}

std::uint64_t number_in(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

/// "2026-11-30T12:00:00.000Z  epoch 4  alpha (0123abcd) #2 at 127.0.0.1:4000: down: reason"
std::string line_of(const json& event) {
  std::string line =
      text_in(event, "time") + "  epoch " + std::to_string(number_in(event, "epoch")) + "  ";
  const std::string name = text_in(event, "name");
  const std::string id = text_in(event, "node");
  if (id.find_first_not_of('0') != std::string::npos) {
    line += name + " (" + id.substr(0, 8) + ") #" + std::to_string(number_in(event, "incarnation"));
    if (const auto address = text_in(event, "address"); !address.empty()) {
      line += " at " + address;
    }
    line += ": ";
  }
  line += text_in(event, "what");
  if (const auto reason = text_in(event, "reason"); !reason.empty()) {
    line += ": " + reason;
  }
  return line;
}

struct Page {
  std::string body;
  std::vector<json> events;
  std::uint64_t last = 0;
};

expected<Page> read_page(const ApiClient& client, std::uint64_t after, unsigned limit) {
  auto body = client.get("/api/v1/events?after=" + std::to_string(after) +
                         "&limit=" + std::to_string(limit));
  if (!body) {
    return fail(body.error());
  }
  auto answer = json::parse(*body, nullptr, false);
  if (!answer.is_object() || !answer.contains("events") || !answer["events"].is_array()) {
    return fail(ec::malformed, client.address() + ": the answer has no events in it");
  }
  Page page;
  page.last = after;
  for (auto& event : answer["events"]) {
    if (event.is_object()) {
      page.last = std::max(page.last, number_in(event, "seq"));
      page.events.push_back(std::move(event));
    }
  }
  page.body = std::move(*body);
  return page;
}

void print(const Page& page, bool json_lines) {
  for (const auto& event : page.events) {
    std::cout << (json_lines ? event.dump(-1, ' ', false, json::error_handler_t::replace)
                             : line_of(event))
              << '\n';
  }
  std::cout << std::flush;
}

/// Goes on over restarts of the head: the numbers of events do not start anew.
void follow(const Arguments& arguments, const ApiClient& client, std::uint64_t after) {
  BlockedSignals signals;
  bool silent = false;
  while (std::cout && !signals.wait(std::chrono::milliseconds{500})) {
    const auto page = read_page(client, after, 1000);
    if (!page) {
      if (!silent) {
        spdlog::warn("{}; waiting for it", one_line(page.error().text(), 300));
      }
      silent = true;
      continue;
    }
    if (silent) {
      spdlog::info("{} answers again", client.address());
    }
    silent = false;
    print(*page, arguments.json_lines);
    after = page->last;
  }
}

void run_events(const Arguments& arguments) {
  const auto client = ApiClient::make(arguments.api);
  if (!client) {
    give_up(client.error());
  }
  const auto page = read_page(*client, 0, arguments.limit);
  if (!page) {
    give_up(page.error());
  }
  if (arguments.json_lines && !arguments.follow) {
    std::cout << page->body;
    return;
  }
  print(*page, arguments.json_lines);
  if (arguments.follow) {
    follow(arguments, *client, page->last);
  }
}

}  // namespace

void add_events_command(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand("events", "Show what has happened to the nodes of a cluster");
  arguments->api.add_to(*command);
  command->add_flag("--json", arguments->json_lines,
                    "The node's answer as it is; with --follow one JSON object per line");
  command->add_flag("--follow", arguments->follow, "Go on with what happens, until Ctrl-C");
  command->add_option("--limit", arguments->limit, "How many of the last events to begin with")
      ->capture_default_str()
      ->check(CLI::Range(1U, 1000U));
  command->callback([arguments] { run_events(*arguments); });
}

}  // namespace troupe::cli
