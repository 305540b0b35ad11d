// `troupe status`: who is in a cluster.
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "runtime/cli/api_client.hpp"
#include "runtime/cli/app.hpp"
#include "runtime/cli/signals.hpp"
#include "runtime/cli/status_table.hpp"

namespace troupe::cli {

namespace {

constexpr const char* target = "/api/v1/cluster";

struct Arguments {
  ApiArguments api;
  bool json = false;
  bool watch = false;
  bool all = false;
};

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// The server's JSON as it is, or the table.
expected<std::string> show(const Arguments& arguments, const ApiClient& client) {
  auto body = client.get(target);
  if (!body) {
    return fail(body.error());
  }
  auto table = status_table(*body, now_ms(), arguments.all);
  if (!table) {
    return fail(table.error().code(), client.address() + ": " + table.error().text());
  }
  return arguments.json ? std::move(*body) : std::move(*table);
}

/// Redraws until Ctrl-C. A head that does not answer is waited for: it comes back as the same cluster.
void watch(const Arguments& arguments, const ApiClient& client) {
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  BlockedSignals signals;
  std::string last;
  std::int64_t silent_since = 0;
  do {
    const auto shown = show(arguments, client);
    std::string text;
    if (shown) {
      if (silent_since != 0) {
        text =
            client.address() + " answers again after " + format_age(now_ms() - silent_since) + "\n";
      }
      silent_since = 0;
      last = *shown;
      text += last;
    } else {
      silent_since = silent_since == 0 ? now_ms() : silent_since;
      text = "no answer for " + format_age(now_ms() - silent_since) + " (" +
             one_line(shown.error().text(), 200) + "); " +
             (last.empty() ? "waiting\n" : "the last known state:\n" + last);
    }
    std::cout << (terminal ? "\x1b[H\x1b[2J" : "") << text << (terminal ? "" : "\n") << std::flush;
  } while (std::cout && !signals.wait(std::chrono::seconds{1}));
}

}  // namespace

void add_status_command(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand("status", "Show the nodes of a cluster");
  arguments->api.add_to(*command);
  command->add_flag("--json", arguments->json, "The node's answer as it is");
  command->add_flag("--watch", arguments->watch, "Show it anew every second until Ctrl-C");
  command->add_flag("--all", arguments->all, "Nodes that are down or have left, too");
  command->callback([arguments] {
    const auto client = ApiClient::make(arguments->api);
    if (!client) {
      give_up(client.error());
    }
    if (arguments->watch) {
      watch(*arguments, *client);
      return;
    }
    const auto shown = show(*arguments, *client);
    if (!shown) {
      give_up(shown.error());
    }
    std::cout << *shown;
  });
}

}  // namespace troupe::cli
