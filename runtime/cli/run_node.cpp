#include "runtime/cli/run_node.hpp"

#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>

#include "net/gateway.hpp"
#include "runtime/cli/app.hpp"
#include "runtime/cluster_node.hpp"

namespace troupe::cli {

namespace {

caf::behavior echo_actor(caf::event_based_actor* self) {
  self->set_down_handler([](caf::scheduled_actor*, caf::down_msg&) {});
  return {
      [](const std::string& text) { return text; },
      [](std::uint64_t number) { return number; },
  };
}

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

sigset_t ending_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGUSR1);  // from ourselves: the node should end
  return signals;
}

/// SIGTERM and SIGINT begin the drain, a second one ends the process at once. Returns when the node has ended.
error serve(ClusterNode& node) {
  const sigset_t signals = ending_signals();
  const auto main_thread = pthread_self();
  node.on_ended([main_thread] { pthread_kill(main_thread, SIGUSR1); });
  bool draining = false;
  for (;;) {
    int signal = 0;
    sigwait(&signals, &signal);
    if (const auto ended = node.ended()) {
      return *ended;
    }
    if (signal == SIGUSR1) {
      continue;
    }
    if (draining) {
      spdlog::warn("a second signal: ending at once");
      std::fflush(nullptr);
      std::_Exit(128 + signal);
    }
    draining = true;
    node.drain(signal == SIGTERM ? "SIGTERM" : "SIGINT");
  }
}

}  // namespace

void run_node(const NodeSettings& settings) {
  prepare_process();
  // Blocked in every thread, so that the main thread alone receives them.
  const sigset_t signals = ending_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  spdlog::set_level(spdlog::level::from_str(settings.log_level));

  auto started = ClusterNode::start({settings, {}, {}, {}});
  if (!started) {
    give_up(started.error());
  }
  auto& node = (*started)->node();
  const auto echo = node.system().spawn(echo_actor);
  node.mesh().publish("echo", echo);
  const auto gateway = net::Gateway::open(node.mesh(), node.system(), node.types(),
                                          node.transport().endpoint(), "/ws");
  std::cout << "node " << to_string(node.id()) << " \"" << settings.name << "\" listens on "
            << node.address() << std::endl;
  if (!settings.port_file.empty()) {
    if (auto err = write_port_file(settings.port_file, node.address())) {
      caf::anon_send_exit(echo, caf::exit_reason::user_shutdown);
      give_up(err);
    }
  }
  const error reason = serve(**started);
  gateway->close();
  node.mesh().unpublish("echo");
  caf::anon_send_exit(echo, caf::exit_reason::user_shutdown);
  if (!reason) {
    spdlog::info("left the cluster");
  }
  started->reset();
  if (reason) {
    give_up(reason);
  }
}

}  // namespace troupe::cli
