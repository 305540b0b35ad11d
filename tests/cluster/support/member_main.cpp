// A member of a cluster as a program of a user: `troupe node` with its flags, which beside that hosts paths, calls
// others, or keeps every core busy. What happens is told on standard output, one line each:
//   joined INCARNATION | fenced REASON | burning | burned
//   granted PATH GENERATION MONOTONIC_NS | lost PATH GENERATION MONOTONIC_NS
//   calls PATH ANSWERED FAILED LONGEST_PAUSE_MS
#include <sys/prctl.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <thread>

#include <CLI/CLI.hpp>
#include <caf/all.hpp>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "net/caf_error.hpp"
#include "runtime/cli/config_flags.hpp"
#include "runtime/cluster_node.hpp"
#include "runtime/node_config.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

using SteadyClock = std::chrono::steady_clock;

struct Wishes {
  std::vector<std::string> host;
  std::vector<std::string> exclusive;
  std::vector<std::string> call;
  unsigned burn_seconds = 0;
};

std::int64_t monotonic_ns() { return SteadyClock::now().time_since_epoch().count(); }

void tell(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// -- hosting -----------------------------------------------------------------------------------------------

struct Hosted {
  std::atomic<std::uint64_t> generation{0};
};

caf::behavior echo(caf::event_based_actor*) {
  return {[](std::uint64_t number) { return number; }};
}

/// Hosts an actor under `path`, again whenever it has ended.
void keep_hosted(ClusterNode& node, const std::string& path, bool exclusive) {
  auto hosted = std::make_shared<Hosted>();
  const auto actor = node.node().system().spawn(echo);
  actor->attach_functor([&node, hosted, path, exclusive](const caf::error&) {
    if (const auto generation = hosted->generation.load(); generation != 0) {
      tell("lost " + path + " " + std::to_string(generation) + " " +
           std::to_string(monotonic_ns()));
    }
    node.node().mesh().executor().schedule(
        50ms, [&node, path, exclusive] { keep_hosted(node, path, exclusive); });
  });
  node.agent().host({path, actor, exclusive, true},
                    [hosted, path, actor](const expected<DirectoryEntry>& entry) {
                      if (!entry) {
                        caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
                        return;
                      }
                      hosted->generation = entry->generation;
                      tell("granted " + path + " " + std::to_string(entry->generation) + " " +
                           std::to_string(monotonic_ns()));
                    });
}

// -- calling -----------------------------------------------------------------------------------------------

struct CallerState {
  std::string path;
  caf::actor target;
  std::uint64_t sent = 0;
  std::uint64_t answered = 0;
  std::uint64_t failed = 0;
  SteadyClock::time_point last_answer{};
  SteadyClock::time_point told{};
  std::chrono::nanoseconds longest{0};
};

using Next = caf::atom_constant<caf::atom("next")>;

/// Two requests on their way at any time; the pause between two answers is what a user would notice.
caf::behavior caller(caf::stateful_actor<CallerState>* self, const std::string& path,
                     const caf::actor& target) {
  self->state.path = path;
  self->state.target = target;
  const auto report = [self] {
    auto& s = self->state;
    const auto now = SteadyClock::now();
    if (now - s.told > 100ms) {
      s.told = now;
      const auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(s.longest).count();
      tell("calls " + s.path + " " + std::to_string(s.answered) + " " + std::to_string(s.failed) +
           " " + std::to_string(pause));
    }
  };
  self->send(self, Next::value);
  self->send(self, Next::value);
  return {[self, report](Next) {
    auto& state = self->state;
    const auto number = state.sent++;
    self->request(state.target, 20s, number)
        .then(
            [self, report, number](std::uint64_t answer) {
              auto& s = self->state;
              const auto now = SteadyClock::now();
              if (s.answered != 0) {
                s.longest = std::max<std::chrono::nanoseconds>(s.longest, now - s.last_answer);
              }
              s.last_answer = now;
              s.answered += answer == number ? 1 : 0;
              s.failed += answer == number ? 0 : 1;
              report();
              self->delayed_send(self, 1ms, Next::value);
            },
            [self, report](const caf::error& reason) {
              if (self->state.answered != 0) {  // before the first the path may not exist yet
                ++self->state.failed;
                tell("failed " + describe(reason));
              }
              report();
              self->delayed_send(self, 20ms, Next::value);
            });
  }};
}

// -- being busy --------------------------------------------------------------------------------------------

void spin_until(SteadyClock::time_point end) {
  while (SteadyClock::now() < end) {
  }
}

caf::behavior spinner(caf::event_based_actor*, SteadyClock::time_point end) {
  return {[end](caf::ok_atom) { spin_until(end); }};
}

/// All that belongs to the user is busy: compute slots, threads of the actor system, detached actors.
void burn(ClusterNode& node, std::chrono::seconds time) {
  const auto end = SteadyClock::now() + time;
  const unsigned cores = std::max(2U, std::thread::hardware_concurrency());
  tell("burning");
  for (unsigned i = 0; i < cores; ++i) {
    auto& system = node.node().system();
    caf::anon_send(system.spawn<caf::detached>(spinner, end), caf::ok_atom::value);
    caf::anon_send(system.spawn(spinner, end), caf::ok_atom::value);
    caf::anon_send(system.spawn(spinner, end), caf::ok_atom::value);
  }
  for (std::size_t i = 0; i < node.compute().slots(); ++i) {
    if (!node.compute().submit([end] { spin_until(end); })) {
      tell("no slot");
    }
  }
  std::thread{[end] {
    std::this_thread::sleep_until(end);
    tell("burned");
  }}.detach();
}

// -- the program -------------------------------------------------------------------------------------------

int fail_with(const error& reason) {
  std::fprintf(stderr, "troupe: %s\n", reason.text().c_str());
  return 1;
}

void write_port(const std::string& file, const std::string& address) {
  if (!file.empty()) {
    const std::string temporary = file + ".tmp";
    if (std::FILE* out = std::fopen(temporary.c_str(), "w")) {
      std::fprintf(out, "%s\n", address.substr(address.rfind(':') + 1).c_str());
      std::fclose(out);
      std::rename(temporary.c_str(), file.c_str());
    }
  }
}

int run(const NodeSettings& settings, const Wishes& wishes) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ClusterNodeOptions options;
  options.settings = settings;
  options.hooks.on_joined = [&](std::uint64_t incarnation) {
    tell("joined " + std::to_string(incarnation));
  };
  options.hooks.on_fenced = [](const std::string& reason) { tell("fenced " + reason); };
  auto node = ClusterNode::start(std::move(options));
  if (!node) {
    return fail_with(node.error());
  }
  write_port(settings.port_file, (*node)->node().address());
  (*node)->on_ended([main = pthread_self()] { pthread_kill(main, SIGUSR1); });
  for (const auto& path : wishes.host) {
    keep_hosted(**node, path, false);
  }
  for (const auto& path : wishes.exclusive) {
    keep_hosted(**node, path, true);
  }
  for (const auto& path : wishes.call) {
    (*node)->node().system().spawn(caller, path, (*node)->agent().ref(path));
  }
  if (wishes.burn_seconds > 0) {
    while (!(*node)->agent().ready()) {
      std::this_thread::sleep_for(5ms);
    }
    burn(**node, std::chrono::seconds{wishes.burn_seconds});
  }
  for (;;) {
    int signal = 0;
    sigwait(&signals, &signal);
    if (const auto ended = (*node)->ended()) {
      // The actors of this program never end by themselves.
      std::_Exit(*ended ? fail_with(*ended) : 0);
    }
    if (signal == SIGTERM) {
      (*node)->drain("SIGTERM");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prepare_process();
  spdlog::set_default_logger(spdlog::stderr_color_mt("member"));
  CLI::App app{"member of a test cluster"};
  Wishes wishes;
  const auto sources = std::make_shared<ConfigSources>();
  app.add_option("--host", wishes.host, "Path to host");
  app.add_option("--exclusive", wishes.exclusive, "Path to hold exclusively");
  app.add_option("--call", wishes.call, "Path to call all the time");
  app.add_option("--burn", wishes.burn_seconds, "Seconds to keep all threads busy");
  bool second_head = false;
  app.add_flag("--second-head", second_head, "Be a head in spite of --join");
  cli::add_config_flags(app, node_setting_table(), sources);
  CLI11_PARSE(app, argc, argv);
  sources->environment = process_environment();
  auto loaded = load_node_config(*sources);
  if (!loaded) {
    return fail_with(loaded.error());
  }
  if (second_head) {
    loaded->settings.head = true;
  }
  return run(loaded->settings, wishes);
}
