// `troupe ping`: links to a node as a peer does and exchanges messages with its echo actor.
#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <caf/scoped_actor.hpp>
#include <spdlog/spdlog.h>

#include "net/caf_error.hpp"
#include "runtime/cli/app.hpp"
#include "runtime/cli/node_options.hpp"

namespace troupe::cli {

namespace {

struct Arguments {
  NodeArguments node;
  std::string address;
  unsigned count = 10;
  unsigned timeout_ms = 2000;
};

void run_ping(const Arguments& arguments) {
  using Clock = std::chrono::steady_clock;
  prepare_process();
  spdlog::set_level(spdlog::level::err);  // the one line of a failure says it all
  auto options = arguments.node.resolve();
  options.heartbeats = false;
  auto node = Node::start(std::move(options));
  if (!node) {
    give_up(node.error());
  }
  const auto timeout = std::chrono::milliseconds{arguments.timeout_ms};
  auto peer = (*node)->mesh().connect_wait(arguments.address, timeout);
  if (!peer) {
    give_up(error{peer.error().code(),
                  "cannot reach " + arguments.address + ": " + peer.error().text()});
  }
  auto echo = (*node)->mesh().find_wait(*peer, "echo", timeout);
  if (!echo) {
    give_up(echo.error());
  }
  std::cout << "node " << to_string(*peer) << " at " << arguments.address << '\n';
  std::vector<double> times;
  {
    caf::scoped_actor self{(*node)->system()};
    for (std::uint64_t i = 1; i <= arguments.count; ++i) {
      const auto start = Clock::now();
      std::string problem;
      self->request(*echo, timeout, i)
          .receive(
              [&](std::uint64_t answer) {
                if (answer != i) {
                  problem = "the answer does not match the request";
                }
              },
              [&](const caf::error& err) { problem = describe(err); });
      if (!problem.empty()) {
        give_up(error{ec::timeout, "request " + std::to_string(i) + " of " +
                                       std::to_string(arguments.count) + ": " + problem});
      }
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
      if (i <= 5) {
        std::cout << "  request " << i << ": " << std::fixed << std::setprecision(0) << times.back()
                  << " us\n";
      }
    }
  }
  std::sort(times.begin(), times.end());
  std::cout << times.size() << " requests answered, median " << std::fixed << std::setprecision(0)
            << times[times.size() / 2] << " us, slowest " << times.back() << " us\n";
  *echo = nullptr;
  (*node)->stop();
}

}  // namespace

void add_ping_command(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand("ping", "Exchange messages with a running node");
  command->add_option("ADDRESS", arguments->address, "host:port of the node")->required();
  command->add_option("--count", arguments->count, "Number of requests")
      ->capture_default_str()
      ->check(CLI::Range(1U, 10'000'000U));
  command->add_option("--timeout-ms", arguments->timeout_ms, "For each step, in milliseconds")
      ->capture_default_str()
      ->check(CLI::Range(1U, 600'000U));
  arguments->node.add_to(*command, true);
  arguments->node.name = "ping";
  command->callback([arguments] { run_ping(*arguments); });
}

}  // namespace troupe::cli
