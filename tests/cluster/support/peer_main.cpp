// The other process of the cluster tests: a node with a few actors, told what to do by messages.
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <caf/all.hpp>
#include <spdlog/spdlog.h>

#include "runtime/node.hpp"
#include "tests/support/messages.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

// Answers with the number; checks that numbers come in order.
caf::behavior counter(caf::stateful_actor<std::uint64_t>* self) {
  self->state = 0;
  return {
      [=](std::uint64_t number) -> caf::result<std::uint64_t> {
        if (number != self->state) {
          return caf::make_error(caf::sec::invalid_argument,
                                 "expected " + std::to_string(self->state));
        }
        ++self->state;
        return number;
      },
  };
}

caf::behavior one_shot(caf::event_based_actor* self) {
  return {
      [=](std::uint64_t number) {
        self->quit();
        return number;
      },
  };
}

caf::behavior echo(caf::event_based_actor* self) {
  return {
      [](std::uint64_t number) { return number; },
      [](const std::string& text) { return text; },
      [](const net::Bytes& bytes) { return static_cast<std::uint64_t>(bytes.size()); },
      // A fresh actor that ends after its first message.
      [=](caf::ok_atom) -> caf::actor { return self->spawn(one_shot); },
  };
}

caf::behavior silent(caf::stateful_actor<std::vector<caf::response_promise>>* self) {
  return {
      [=](std::uint64_t) -> caf::response_promise {
        self->state.push_back(self->make_response_promise());
        return self->state.back();
      },
  };
}

// Keeps every other thread of the process busy.
caf::behavior burner(caf::event_based_actor*) {
  return {
      [](std::uint64_t milliseconds) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds{milliseconds};
        while (std::chrono::steady_clock::now() < end) {
        }
      },
  };
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prepare_process();
  spdlog::set_level(spdlog::level::err);
  NodeOptions options;
  options.name = "peer";
  options.cluster = argc > 1 ? argv[1] : "cluster-test";
  options.listen = argc > 2 ? argv[2] : "127.0.0.1:0";
  if (argc > 3) {
    options.tls = NodeTls::in_folder(argv[3], argv[4]);
  }
  options.types = [](net::TypeRegistry& registry) { return add_test_types(registry); };
  auto node = Node::start(std::move(options));
  if (!node) {
    std::fprintf(stderr, "test_peer: %s\n", node.error().text().c_str());
    return 1;
  }
  auto& system = (*node)->system();
  auto& mesh = (*node)->mesh();
  mesh.publish("counter", system.spawn(counter));
  mesh.publish("echo", system.spawn(echo));
  mesh.publish("silent", system.spawn(silent));
  mesh.publish("control", system.spawn(echo), net::Lane::control);
  mesh.publish("burner", system.spawn(burner));
  std::printf("listening %s\n", (*node)->address().c_str());
  std::fflush(stdout);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  int signal = 0;
  sigwait(&signals, &signal);
  // The actors of this program never end by themselves.
  std::_Exit(0);
}
