#include "link/child.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace troupe::bench {

namespace {

using Clock = std::chrono::steady_clock;

void close_if_open(int& descriptor) {
  if (descriptor >= 0) {
    ::close(descriptor);
    descriptor = -1;
  }
}

std::string system_text(const std::string& what) {
  return what + " failed: " + std::strerror(errno);
}

/// Between fork and exec: only calls that are safe there. Does not return.
[[noreturn]] void become_child(pid_t parent, int input, int output, char* const* arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == parent && ::dup2(input, STDIN_FILENO) >= 0 &&
      ::dup2(output, STDOUT_FILENO) >= 0) {
    ::execv("/proc/self/exe", arguments);
  }
  ::_exit(127);
}

}  // namespace

Child::Child(Child&& other) noexcept { *this = std::move(other); }

Child& Child::operator=(Child&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(input_, other.input_);
  std::swap(output_, other.output_);
  std::swap(port_, other.port_);
  return *this;
}

Child::~Child() {
  close_if_open(input_);
  close_if_open(output_);
  if (pid_ <= 0) {
    return;
  }
  const auto deadline = Clock::now() + std::chrono::seconds(1);
  while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (Clock::now() > deadline) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      return;
    }
    ::poll(nullptr, 0, 5);
  }
}

expected<Child> Child::start(const std::vector<std::string>& arguments,
                             std::chrono::milliseconds limit) {
  int to_child[2];
  int from_child[2];
  if (::pipe2(to_child, O_CLOEXEC) != 0) {
    return fail(ec::system_error, system_text("pipe2"));
  }
  if (::pipe2(from_child, O_CLOEXEC) != 0) {
    ::close(to_child[0]);
    ::close(to_child[1]);
    return fail(ec::system_error, system_text("pipe2"));
  }
  std::vector<std::string> words{"bench_link"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (auto& word : words) {
    pointers.push_back(word.data());
  }
  pointers.push_back(nullptr);

  const pid_t parent = ::getpid();
  Child child;
  child.pid_ = ::fork();
  if (child.pid_ == 0) {
    become_child(parent, to_child[0], from_child[1], pointers.data());
  }
  ::close(to_child[0]);
  ::close(from_child[1]);
  child.input_ = to_child[1];
  child.output_ = from_child[0];
  if (child.pid_ < 0) {
    return fail(ec::system_error, system_text("fork"));
  }
  if (auto port = child.read_port(limit); !port) {
    return fail(port.error());
  }
  return child;
}

expected<void> Child::read_port(std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  std::string line;
  while (line.find('\n') == std::string::npos) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{output_, POLLIN, 0};
    if (left <= 0 || line.size() > 64 || ::poll(&waiting, 1, static_cast<int>(left)) <= 0) {
      return fail(ec::timeout, "the server process did not print its port in time");
    }
    char text[64];
    const auto count = ::read(output_, text, sizeof(text));
    if (count <= 0) {
      return fail(ec::system_error, "the server process ended before it printed its port");
    }
    line.append(text, static_cast<std::size_t>(count));
  }
  unsigned port = 0;
  if (std::sscanf(line.c_str(), "PORT %u", &port) != 1 || port == 0 || port > 65535) {
    return fail(ec::malformed, "the server process printed \"" + line + "\" instead of its port");
  }
  port_ = static_cast<std::uint16_t>(port);
  return {};
}

void announce_and_wait(std::uint16_t port) {
  std::printf("PORT %u\n", static_cast<unsigned>(port));
  std::fflush(stdout);
  char ignored;
  while (::read(STDIN_FILENO, &ignored, 1) > 0 || errno == EINTR) {
    errno = 0;
  }
}

}  // namespace troupe::bench
