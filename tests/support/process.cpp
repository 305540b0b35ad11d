#include "tests/support/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <thread>

namespace troupe::test {

using Clock = std::chrono::steady_clock;

ChildProcess::ChildProcess(const std::vector<std::string>& command, bool with_stderr) {
  int pipes[2];
  if (pipe2(pipes, O_CLOEXEC) != 0) {
    throw std::runtime_error("pipe failed");
  }
  std::vector<char*> arguments;
  for (const auto& word : command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(pipes[1], STDOUT_FILENO);
    if (with_stderr) {
      dup2(pipes[1], STDERR_FILENO);
    }
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(pipes[1]);
  out_ = pipes[0];
  if (pid_ < 0) {
    throw std::runtime_error("fork failed");
  }
}

ChildProcess::~ChildProcess() {
  if (!status_) {
    kill(pid_, SIGKILL);
    kill(pid_, SIGCONT);
    wait(std::chrono::seconds{10});
  }
  close(out_);
}

std::optional<std::string> ChildProcess::read_line(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    if (const auto end = buffer_.find('\n'); end != std::string::npos) {
      auto line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{out_, POLLIN, 0};
    if (left <= 0 || poll(&entry, 1, static_cast<int>(left)) <= 0) {
      return std::nullopt;
    }
    char chunk[4096];
    const auto got = read(out_, chunk, sizeof chunk);
    if (got <= 0) {
      return std::nullopt;
    }
    buffer_.append(chunk, static_cast<std::size_t>(got));
  }
}

std::optional<std::string> ChildProcess::read_until(const std::string& prefix,
                                                    std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (Clock::now() < deadline) {
    const auto line =
        read_line(std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()));
    if (!line) {
      return std::nullopt;
    }
    if (line->compare(0, prefix.size(), prefix) == 0) {
      return line->substr(prefix.size());
    }
  }
  return std::nullopt;
}

std::string ChildProcess::read_all(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::string result;
  while (const auto line = read_line(
             std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()))) {
    result += *line + "\n";
  }
  return result;
}

void ChildProcess::signal(int number) const { kill(pid_, number); }

std::optional<int> ChildProcess::wait(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (!status_) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      break;
    }
    if (Clock::now() > deadline) {
      return std::nullopt;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
  return status_;
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (!condition()) {
    if (Clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  return true;
}

std::size_t resident_bytes(pid_t pid) {
  std::ifstream in{"/proc/" + std::to_string(pid) + "/statm"};
  std::size_t total = 0;
  std::size_t resident = 0;
  in >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::uint64_t test_seed(const char* test) {
  const char* given = std::getenv("TROUPE_SEED");
  const auto seed =
      given != nullptr ? std::strtoull(given, nullptr, 10)
                       : static_cast<std::uint64_t>(
                             std::chrono::system_clock::now().time_since_epoch().count() % 1000003);
  std::printf("%s: seed %llu (repeat with TROUPE_SEED=%llu)\n", test,
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  return seed;
}

}  // namespace troupe::test
