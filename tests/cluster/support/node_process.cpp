#include "tests/cluster/support/node_process.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <nlohmann/json.hpp>

#include "net/http_client.hpp"
#include "tests/support/process.hpp"

// NOLINTNEXTLINE(readability-redundant-declaration)
extern char** environ;

namespace troupe::test {

namespace {

std::string read_file(const std::string& path) {
  std::ifstream in{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> out;
  for (const auto& word : words) {
    out.push_back(const_cast<char*>(word.c_str()));
  }
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> environment_with(std::vector<std::string> more) {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text{*entry};
    if (text.rfind("TROUPE_", 0) != 0) {
      more.push_back(text);
    }
  }
  return more;
}

std::string unique_files(const Folder& folder, const std::string& name) {
  static std::atomic<int> next{0};
  return folder / (name + "-" + std::to_string(next++));
}

}  // namespace

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "troupe-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw std::runtime_error("mkdtemp failed");
  }
  path_ = name;
}

Folder::~Folder() {
  if (std::getenv("TROUPE_TEST_KEEP") != nullptr) {
    std::fprintf(stderr, "kept: %s\n", path_.c_str());
    return;
  }
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

// -- processes ---------------------------------------------------------------------------------------------

LoggedProcess::LoggedProcess(std::string files, std::vector<std::string> command,
                             std::vector<std::string> environment)
    : files_(std::move(files)) {
  const auto all = environment_with(std::move(environment));
  const auto arguments = pointers_to(command);
  const auto variables = pointers_to(all);
  const auto open_file = [this](const char* kind) {
    return ::open((files_ + kind).c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  };
  const int out = open_file(".out");
  const int err = open_file(".err");
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(127);
    }
    dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execve(arguments[0], arguments.data(), variables.data());
    _exit(127);
  }
  close(out);
  close(err);
  if (pid_ < 0) {
    throw std::runtime_error("fork failed");
  }
}

LoggedProcess::~LoggedProcess() { kill_now(); }

void LoggedProcess::signal(int number) const {
  if (!status_) {
    ::kill(pid_, number);
  }
}

void LoggedProcess::kill_now() {
  if (!status_) {
    ::kill(pid_, SIGKILL);
    wait(std::chrono::seconds{10});
  }
}

std::optional<int> LoggedProcess::wait(std::chrono::milliseconds timeout) {
  eventually(
      [this] {
        int status = 0;
        if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) {
          status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
        return status_.has_value();
      },
      timeout);
  return status_;
}

std::string LoggedProcess::out() const { return read_file(files_ + ".out"); }
std::string LoggedProcess::err() const { return read_file(files_ + ".err"); }

bool LoggedProcess::says(const std::string& text, std::chrono::milliseconds timeout) const {
  return eventually(
      [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds{4});
        return out().find(text) != std::string::npos || err().find(text) != std::string::npos;
      },
      timeout);
}

std::vector<std::string> LoggedProcess::lines_with(const std::string& text) const {
  std::istringstream in{err()};
  std::vector<std::string> found;
  for (std::string line; std::getline(in, line);) {
    if (line.find(text) != std::string::npos) {
      found.push_back(line);
    }
  }
  return found;
}

// -- what nodes say ----------------------------------------------------------------------------------------

const MemberInfo* ClusterInfo::find(const std::string& name) const {
  for (const auto& member : nodes) {
    if (member.name == name) {
      return &member;
    }
  }
  return nullptr;
}

std::string ClusterInfo::state_of(const std::string& name) const {
  if (const auto* member = find(name)) {
    return member->state;
  }
  for (auto it = ended.rbegin(); it != ended.rend(); ++it) {
    if (it->name == name) {
      return it->state;
    }
  }
  return "";
}

std::size_t ClusterInfo::count(const std::string& state) const {
  return static_cast<std::size_t>(std::count_if(
      nodes.begin(), nodes.end(), [&](const auto& member) { return member.state == state; }));
}

std::string ClusterInfo::text() const {
  std::string result = cluster_id.substr(0, 8) + " epoch " + std::to_string(epoch) + " term " +
                       std::to_string(term) + ":";
  for (const auto* list : {&nodes, &ended}) {
    for (const auto& m : *list) {
      result += " " + m.name + "#" + std::to_string(m.incarnation) + "=" + m.state +
                (m.reason.empty() ? "" : " (" + m.reason + ")");
    }
  }
  return result;
}

std::optional<ClusterInfo> parse_cluster(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("nodes")) {
    return std::nullopt;
  }
  ClusterInfo info;
  info.cluster = json.value("cluster", "");
  info.cluster_id = json.value("cluster_id", "");
  info.broker = json.value("broker", "");
  info.broker_address = json.value("broker_address", "");
  info.epoch = json.value("epoch", std::uint64_t{0});
  info.term = json.value("term", std::uint64_t{0});
  const auto fill = [&](const char* key, std::vector<MemberInfo>& list) {
    for (const auto& entry : json[key]) {
      MemberInfo member;
      member.id = entry.value("id", "");
      member.name = entry.value("name", "");
      member.address = entry.value("address", "");
      member.state = entry.value("state", "");
      member.reason = entry.value("reason", "");
      member.incarnation = entry.value("incarnation", std::uint64_t{0});
      member.epoch = entry.value("epoch", std::uint64_t{0});
      member.pid = entry.value("pid", std::int64_t{0});
      member.draining = entry.value("draining", false);
      member.head = entry.value("head", false);
      list.push_back(std::move(member));
    }
  };
  fill("nodes", info.nodes);
  if (json.contains("ended")) {
    fill("ended", info.ended);
  }
  return info;
}

std::optional<std::string> http_get(const std::string& address, const std::string& target,
                                    std::chrono::milliseconds timeout) {
  net::HttpCall call;
  call.address = address;
  call.target = target;
  call.timeout = timeout;
  const auto result = net::http_request(call);
  return result && result->status == 200 ? std::optional{result->body} : std::nullopt;
}

std::optional<double> metric(const std::string& address, const std::string& name) {
  const auto text = http_get(address, "/metrics");
  if (!text) {
    return std::nullopt;
  }
  std::istringstream in{*text};
  std::optional<double> sum;
  for (std::string line; std::getline(in, line);) {
    const auto after = line.size() > name.size() ? line[name.size()] : '\0';
    if (line.compare(0, name.size(), name) == 0 && (after == ' ' || after == '{')) {
      sum = sum.value_or(0) + std::stod(line.substr(line.rfind(' ')));
    }
  }
  return sum;
}

// -- nodes -------------------------------------------------------------------------------------------------

namespace {

std::vector<std::string> command_of(const NodeSpec& spec, const std::string& files) {
  std::vector<std::string> command = spec.prefix;
  if (spec.member) {
    command.emplace_back(TROUPE_TEST_MEMBER);
  } else {
    command.insert(command.end(), {TROUPE_PROGRAM, "node"});
  }
  command.insert(command.end(),
                 {"--listen", spec.listen, "--name", spec.name, "--cluster-name", spec.cluster,
                  "--profile", spec.profile, "--port-file", files + ".port"});
  if (spec.head) {
    command.emplace_back("--head");
  }
  if (!spec.join.empty()) {
    command.insert(command.end(), {"--join", spec.join});
  }
  if (!spec.data.empty()) {
    command.insert(command.end(), {"--data", spec.data});
  }
  command.insert(command.end(), spec.more.begin(), spec.more.end());
  return command;
}

}  // namespace

NodeProcess::NodeProcess(const Folder& folder, NodeSpec spec)
    : NodeProcess(folder, spec, unique_files(folder, spec.name)) {}

NodeProcess::NodeProcess(const Folder&, const NodeSpec& spec, const std::string& files)
    : LoggedProcess(files, command_of(spec, files), spec.environment), spec_(spec), files_(files) {}

std::string NodeProcess::address(std::chrono::milliseconds timeout) const {
  if (address_.empty()) {
    std::string port;
    eventually([&] { return static_cast<bool>(std::ifstream{files_ + ".port"} >> port); }, timeout);
    if (!port.empty()) {
      address_ = spec_.listen.substr(0, spec_.listen.rfind(':') + 1) + port;
    }
  }
  return address_;
}

std::optional<ClusterInfo> NodeProcess::view() const {
  const auto where = address();
  const auto text = where.empty() ? std::nullopt : http_get(where, "/api/v1/cluster");
  return text ? parse_cluster(*text) : std::nullopt;
}

bool NodeProcess::sees(const std::function<bool(const ClusterInfo&)>& condition,
                       std::chrono::milliseconds timeout) const {
  return eventually(
      [&] {
        const auto now = view();
        if (now && condition(*now)) {
          return true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds{8});
        return false;
      },
      timeout);
}

bool NodeProcess::sees_up(std::size_t count, std::chrono::milliseconds timeout) const {
  return sees(
      [count](const ClusterInfo& info) {
        return info.count("up") == count && info.nodes.size() == count;
      },
      timeout);
}

double NodeProcess::metric(const std::string& name) const {
  return test::metric(address(), name).value_or(-1);
}

// -- odds and ends -----------------------------------------------------------------------------------------

std::uint16_t free_port() {
  constexpr int first = 20'000;
  constexpr int count = 12'000;
  static std::atomic<int> next{static_cast<int>(getpid()) * 37};
  for (int tries = 0; tries < count; ++tries) {
    const auto port = static_cast<std::uint16_t>(first + next++ % count);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(port);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool free = ::bind(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0;
    ::close(fd);
    if (free) {
      return port;
    }
  }
  throw std::runtime_error("no free port");
}

std::string free_address() { return "127.0.0.1:" + std::to_string(free_port()); }

RunResult run_program(const Folder& folder, const std::vector<std::string>& command,
                      std::chrono::milliseconds timeout) {
  const auto start = Clock::now();
  LoggedProcess process{unique_files(folder, "run"), command};
  RunResult result;
  result.code = process.wait(timeout).value_or(-1);
  result.took = since(start);
  result.out = process.out();
  result.err = process.err();
  return result;
}

std::chrono::milliseconds cpu_time(pid_t pid) {
  const auto text = read_file("/proc/" + std::to_string(pid) + "/stat");
  const auto after_name = text.rfind(") ");
  if (after_name == std::string::npos) {
    return {};
  }
  // state ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt, then utime stime
  std::istringstream in{text.substr(after_name + 2)};
  std::string skipped;
  for (int i = 0; i < 11; ++i) {
    in >> skipped;
  }
  long user = 0;
  long system = 0;
  in >> user >> system;
  return std::chrono::milliseconds{(user + system) * 1000 / sysconf(_SC_CLK_TCK)};
}

std::chrono::milliseconds since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
}

std::vector<std::string> complaints(const std::string& err) {
  std::istringstream in{err};
  std::vector<std::string> found;
  for (std::string line; std::getline(in, line);) {
    if (line.find("[info]") == std::string::npos && line.find("[debug]") == std::string::npos) {
      found.push_back(line);
    }
  }
  return found;
}

}  // namespace troupe::test
