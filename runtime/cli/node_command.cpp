// `troupe node`: one process of a cluster. Joining by broker comes with the membership layer; today a
// node links to the addresses it is given and answers on the actor "echo".
#include <csignal>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>
#include <spdlog/spdlog.h>

#include "net/gateway.hpp"
#include "runtime/cli/app.hpp"
#include "runtime/cli/node_options.hpp"
#include "runtime/node.hpp"

namespace troupe::cli {

namespace {

caf::behavior echo_actor(caf::event_based_actor* self) {
  self->set_down_handler([](caf::scheduled_actor*, caf::down_msg&) {});
  return {
      [](const std::string& text) { return text; },
      [](std::uint64_t number) { return number; },
  };
}

struct Arguments {
  NodeArguments node;
  std::vector<std::string> join;
  std::string port_file;
};

// Written whole or not at all: whoever waits for it must not read half a number.
error write_port_file(const std::string& path, const std::string& address) {
  const std::string temporary = path + ".tmp";
  {
    std::ofstream out{temporary};
    out << address.substr(address.rfind(':') + 1) << '\n';
    if (!out.flush()) {
      return {ec::system_error, "cannot write the port file " + temporary};
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    return {ec::system_error, "cannot write the port file " + path};
  }
  return {};
}

// Retries until the node answers or the process is told to end.
void keep_joining(Node& node, const std::string& address, const std::shared_ptr<bool>& stopped) {
  node.mesh().connect(address, [&node, address, stopped](expected<NodeId> result) {
    if (result || *stopped) {
      return;
    }
    spdlog::info("waiting for {}: {}", address, result.error().text());
    node.transport()
        .executor(net::StreamPurpose::link)
        .schedule(std::chrono::seconds{1}, [=, &node] {
          if (!*stopped) {
            keep_joining(node, address, stopped);
          }
        });
  });
}

int wait_for_signal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  int signal = 0;
  sigwait(&signals, &signal);
  return signal;
}

void run_node(const Arguments& arguments) {
  prepare_process();
  // Blocked in every thread, so that the main thread alone receives them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  auto node = Node::start(arguments.node.resolve());
  if (!node) {
    give_up(node.error());
  }
  const auto echo = (*node)->system().spawn(echo_actor);
  (*node)->mesh().publish("echo", echo);
  const auto gateway = net::Gateway::open((*node)->mesh(), (*node)->system(), (*node)->types(),
                                          (*node)->transport().endpoint(), "/ws");
  std::cout << "node " << to_string((*node)->id()) << " \"" << arguments.node.name
            << "\" listens on " << (*node)->address() << std::endl;
  if (!arguments.port_file.empty()) {
    if (auto err = write_port_file(arguments.port_file, (*node)->address())) {
      give_up(err);
    }
  }
  const auto stopped = std::make_shared<bool>(false);
  for (const auto& address : arguments.join) {
    keep_joining(**node, address, stopped);
  }
  const int signal = wait_for_signal();
  spdlog::info("leaving after signal {}", signal);
  // A second signal ends the process at once.
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  (*node)->transport().executor(net::StreamPurpose::link).post([stopped] { *stopped = true; });
  gateway->close();
  (*node)->mesh().unpublish("echo");
  caf::anon_send_exit(echo, caf::exit_reason::user_shutdown);
  (*node)->stop();
}

}  // namespace

void add_node_command(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  auto* command =
      app.add_subcommand("node", "Run one process of a cluster until SIGTERM or SIGINT");
  arguments->node.add_to(*command);
  command->add_option("--join", arguments->join, "Nodes to link to: host:port[,host:port]")
      ->delimiter(',');
  command->add_option("--port-file", arguments->port_file,
                      "Write the port to this file once the node listens");
  command->callback([arguments] { run_node(*arguments); });
}

}  // namespace troupe::cli
