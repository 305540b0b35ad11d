#include "runtime/cli/child_nodes.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <utility>

namespace troupe::cli {

namespace {

constexpr std::size_t longest_line = std::size_t{64} << 10U;

sigset_t our_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGCHLD}) {
    sigaddset(&set, number);
  }
  return set;
}

void write_all(std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR) {
      return;  // nobody reads our output any more; the children matter more
    }
    text.remove_prefix(written > 0 ? static_cast<std::size_t>(written) : 0);
  }
}

void print_lines(const std::string& name, std::string& partial) {
  std::string out;
  std::size_t begin = 0;
  for (auto end = partial.find('\n'); end != std::string::npos; end = partial.find('\n', begin)) {
    out += "[" + name + "] " + partial.substr(begin, end + 1 - begin);
    begin = end + 1;
  }
  partial.erase(0, begin);
  if (partial.size() > longest_line) {
    out += "[" + name + "] " + partial + "\n";
    partial.clear();
  }
  write_all(out);
}

std::vector<std::string> environment_without(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text{*entry};
    const auto name = text.substr(0, text.find('='));
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      out.emplace_back(text);
    }
  }
  return out;
}

std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> out;
  for (const auto& word : words) {
    out.push_back(const_cast<char*>(word.c_str()));
  }
  out.push_back(nullptr);
  return out;
}

/// What the child does between fork and exec: only calls that are allowed there.
[[noreturn]] void become(char* const* arguments, char* const* environment, int output,
                         pid_t parent) {
  // Ctrl-C at a terminal must reach the parent alone, which ends the children in order.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    _exit(127);  // it died before it could have killed us
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execve(arguments[0], arguments, environment);
  const char text[] = "cannot execute the program\n";
  [[maybe_unused]] const auto ignored = write(STDERR_FILENO, text, sizeof text - 1);
  _exit(127);
}

}  // namespace

bool ChildNodes::Child::clean() const {
  return !running && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::string ChildNodes::Child::end() const {
  if (running) {
    return "is running";
  }
  if (WIFSIGNALED(status)) {
    return "was killed by signal " + std::to_string(WTERMSIG(status)) + " (" +
           strsignal(WTERMSIG(status)) + ")";
  }
  return "ended with exit status " + std::to_string(WEXITSTATUS(status));
}

ChildNodes::ChildNodes() {
  const auto set = our_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

ChildNodes::~ChildNodes() {
  signal_all(SIGKILL);
  for (auto& child : children_) {
    if (child.running) {
      ::waitpid(child.pid, nullptr, 0);
    }
    if (child.output >= 0) {
      ::close(child.output);
    }
  }
  ::close(signal_fd_);
  const auto set = our_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

expected<void> ChildNodes::start(const std::string& name, const std::vector<std::string>& command,
                                 const std::vector<std::string>& without) {
  int pipes[2];
  if (signal_fd_ < 0 || pipe2(pipes, O_CLOEXEC) != 0) {
    return fail(ec::system_error, "cannot start " + name + ": " + std::strerror(errno));
  }
  const auto environment = environment_without(without);
  const auto arguments = pointers_to(command);
  const auto variables = pointers_to(environment);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    become(arguments.data(), variables.data(), pipes[1], parent);
  }
  ::close(pipes[1]);
  if (pid < 0) {
    ::close(pipes[0]);
    return fail(ec::system_error, "cannot start " + name + ": " + std::strerror(errno));
  }
  fcntl(pipes[0], F_SETFL, O_NONBLOCK);
  Child child;
  child.name = name;
  child.pid = pid;
  child.output = pipes[0];
  children_.push_back(std::move(child));
  return {};
}

void ChildNodes::pump(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  const unsigned signals_before = signals_;
  while (signals_ == signals_before && ended_.empty()) {
    std::vector<pollfd> waiting{{signal_fd_, POLLIN, 0}};
    std::vector<std::size_t> owners{0};
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (children_[i].output >= 0) {
        waiting.push_back({children_[i].output, POLLIN, 0});
        owners.push_back(i);
      }
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    const int ready = ::poll(waiting.data(), waiting.size(),
                             static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready <= 0) {
      return;
    }
    for (std::size_t i = 1; i < waiting.size(); ++i) {
      if (waiting[i].revents != 0) {
        read_output(children_[owners[i]]);
      }
    }
    if (waiting[0].revents != 0) {
      read_signals();
    }
    if (std::chrono::steady_clock::now() >= end) {
      return;
    }
  }
}

void ChildNodes::read_signals() {
  signalfd_siginfo info{};
  while (::read(signal_fd_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo != SIGCHLD) {
      ++signals_;
    }
  }
  reap();
}

void ChildNodes::read_output(Child& child) {
  char chunk[16384];
  // Bounded, so that one who prints without end does not keep the others from being heard.
  for (int round = 0; round < 8 && child.output >= 0; ++round) {
    const auto got = ::read(child.output, chunk, sizeof chunk);
    if (got > 0) {
      child.partial.append(chunk, static_cast<std::size_t>(got));
      print_lines(child.name, child.partial);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      ::close(child.output);
      child.output = -1;
    } else {
      return;
    }
  }
}

void ChildNodes::reap() {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    auto& child = children_[i];
    if (!child.running || ::waitpid(child.pid, &child.status, WNOHANG) != child.pid) {
      continue;
    }
    child.running = false;
    ended_.push_back(i);
    if (child.output >= 0) {
      read_output(child);
    }
    if (!child.partial.empty()) {
      child.partial += '\n';
      print_lines(child.name, child.partial);
    }
  }
}

void ChildNodes::signal(std::size_t index, int number) {
  if (children_[index].running) {
    ::kill(children_[index].pid, number);
  }
}

void ChildNodes::signal_all(int number) {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    signal(i, number);
  }
}

bool ChildNodes::any_running() const {
  return std::any_of(children_.begin(), children_.end(),
                     [](const Child& child) { return child.running; });
}

std::vector<std::size_t> ChildNodes::take_ended() { return std::exchange(ended_, {}); }

}  // namespace troupe::cli
