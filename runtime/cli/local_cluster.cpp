#include "runtime/cli/local_cluster.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>
#include <system_error>

#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "net/endpoint.hpp"
#include "runtime/cli/child_nodes.hpp"

namespace troupe::cli {

namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// Gone at the end with all that is in it.
class TemporaryFolder {
 public:
  static expected<std::unique_ptr<TemporaryFolder>> make() {
    std::error_code failure;
    const fs::path parent = fs::temp_directory_path(failure);
    std::string pattern = (parent / "troupe-local-XXXXXX").string();
    if (failure || mkdtemp(pattern.data()) == nullptr) {
      return fail(ec::system_error, "cannot make a temporary folder in " + parent.string());
    }
    return std::unique_ptr<TemporaryFolder>{new TemporaryFolder{pattern}};
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  explicit TemporaryFolder(fs::path path) : path_(std::move(path)) {}
  fs::path path_;
};

class LocalCluster {
 public:
  explicit LocalCluster(const LocalOptions& options) : options_(options) {}

  error run() {
    error problem = start();
    if (!problem && children_.signals() == 0) {
      std::cout << options_.count << (options_.count == 1 ? " node is" : " nodes are")
                << " up; troupe status --cluster " << address_ << std::endl;
      problem = watch();
    }
    return stop(problem);
  }

 private:
  std::string name_of(unsigned index) const { return options_.name_prefix + std::to_string(index); }

  error start() {
    auto folder = TemporaryFolder::make();
    if (!folder) {
      return folder.error();
    }
    folder_ = std::move(*folder);
    const fs::path port_file = folder_->path() / "head.port";
    if (auto err = start_node(
            0, {"--head", "--listen", options_.listen, "--port-file", port_file.string()})) {
      return err;
    }
    if (auto err = wait_for_port(port_file)) {
      return err;
    }
    for (unsigned i = 1; i < options_.count && children_.signals() == 0; ++i) {
      if (auto err = start_node(i, {"--listen", "127.0.0.1:0", "--join", address_})) {
        return err;
      }
    }
    return wait_for_view();
  }

  error start_node(unsigned index, const std::vector<std::string>& more) {
    const fs::path data =
        options_.data.empty() ? folder_->path() / "data" : fs::path{options_.data};
    std::error_code failure;
    fs::create_directories(data / name_of(index), failure);
    if (failure) {
      return {ec::system_error, "cannot make the folder " + (data / name_of(index)).string() +
                                    ": " + failure.message()};
    }
    std::vector<std::string> command{options_.program, "node",   "--name",
                                     name_of(index),   "--data", (data / name_of(index)).string()};
    command.insert(command.end(), more.begin(), more.end());
    command.insert(command.end(), options_.node_flags.begin(), options_.node_flags.end());
    const auto started = children_.start(name_of(index), command, local_variables());
    return started ? error{} : started.error();
  }

  /// During the start nobody may end: the cluster would never be complete.
  error died() {
    const auto ended = children_.take_ended();
    if (ended.empty()) {
      return {};
    }
    const auto& child = children_.all()[ended.front()];
    return {ec::actor_down, child.name + " " + child.end() + " during the start"};
  }

  error wait_for_port(const fs::path& file) {
    const auto end = Clock::now() + options_.start_within;
    while (children_.signals() == 0) {
      std::string port;
      if (std::getline(std::ifstream{file}, port) && !port.empty()) {
        const auto where = net::parse_address(options_.listen);
        std::string host = where ? where->host : "127.0.0.1";
        host = host == "0.0.0.0" ? "127.0.0.1" : host == "::" ? "::1" : host;
        address_ = (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
        return {};
      }
      if (auto err = died()) {
        return err;
      }
      if (Clock::now() > end) {
        return {ec::timeout, "the head did not listen in time"};
      }
      children_.pump(milliseconds{20});
    }
    return {};
  }

  error wait_for_view() {
    ApiArguments arguments = options_.api;
    arguments.address = address_;
    const auto client = ApiClient::make(arguments);
    if (!client) {
      return client.error();
    }
    const auto end = Clock::now() + options_.start_within;
    std::string seen = "no answer";
    while (children_.signals() == 0) {
      const auto body = client->get("/api/v1/cluster", milliseconds{500});
      if (body) {
        const std::size_t up = count_up(*body);
        if (up == options_.count) {
          return {};
        }
        seen = std::to_string(up) + " of " + std::to_string(options_.count) + " nodes up";
      } else {
        seen = body.error().text();
      }
      if (auto err = died()) {
        return err;
      }
      if (Clock::now() > end) {
        return {ec::timeout, "the nodes have not found together in time: " + seen};
      }
      children_.pump(milliseconds{50});
    }
    return {};
  }

  std::size_t count_up(const std::string& body) const {
    const auto json = nlohmann::json::parse(body, nullptr, false);
    std::set<std::uint64_t> up;
    if (json.is_object() && json.contains("nodes") && json["nodes"].is_array()) {
      for (const auto& member : json["nodes"]) {
        if (member.is_object() && member.value("state", nlohmann::json{}) == "up" &&
            member.contains("pid") && member["pid"].is_number_unsigned()) {
          up.insert(member["pid"].get<std::uint64_t>());
        }
      }
    }
    return static_cast<std::size_t>(std::count_if(
        children_.all().begin(), children_.all().end(),
        [&](const auto& child) { return up.count(static_cast<std::uint64_t>(child.pid)) != 0; }));
  }

  /// Until a signal, or the head is gone.
  error watch() {
    while (children_.signals() == 0) {
      children_.pump(std::chrono::hours{1});
      for (const auto index : children_.take_ended()) {
        const auto& child = children_.all()[index];
        if (index == 0) {
          return {ec::actor_down, "the head, " + child.name + ", " + child.end()};
        }
        spdlog::warn("{} (pid {}) {}; the others go on", child.name, child.pid, child.end());
      }
      if (!children_.any_running()) {
        return {ec::actor_down, "no node is left"};
      }
    }
    return {};
  }

  /// Workers first, so that the broker hears of their leaving.
  error stop(const error& problem) {
    failed_ = static_cast<bool>(problem);
    std::string unclean;
    std::vector<std::size_t> workers;
    for (std::size_t i = 1; i < children_.all().size(); ++i) {
      workers.push_back(i);
    }
    for (const auto& group : {workers, std::vector<std::size_t>{0}}) {
      std::vector<std::size_t> running;
      for (const auto index : group) {
        if (index < children_.all().size() && children_.all()[index].running) {
          running.push_back(index);
        }
      }
      end(running);
      for (const auto index : running) {
        const auto& child = children_.all()[index];
        if (!child.clean()) {
          unclean += (unclean.empty() ? "" : ", ") + child.name + " " + child.end();
        }
      }
    }
    if (problem) {
      return problem;
    }
    return unclean.empty() ? error{} : error{ec::actor_down, "not all left cleanly: " + unclean};
  }

  void end(const std::vector<std::size_t>& running) {
    const auto last = Clock::now() + options_.leave_within;
    const auto all_ended = [&] {
      return std::none_of(running.begin(), running.end(),
                          [&](auto index) { return children_.all()[index].running; });
    };
    for (const auto index : running) {
      children_.signal(index, killed_ ? SIGKILL : SIGTERM);
    }
    while (!all_ended()) {
      children_.pump(milliseconds{100});
      children_.take_ended();
      if (!killed_ && (told_twice() || Clock::now() > last)) {
        killed_ = told_twice();
        for (const auto index : running) {
          children_.signal(index, SIGKILL);
        }
      }
    }
  }

  /// Ctrl-C while it ends already.
  bool told_twice() const { return children_.signals() > (failed_ ? 0U : 1U); }

  const LocalOptions& options_;
  std::unique_ptr<TemporaryFolder> folder_;  // outlives the children
  ChildNodes children_;
  std::string address_;
  bool failed_ = false;  // ends without having been told to
  bool killed_ = false;  // told so by a second signal
};

}  // namespace

const std::vector<std::string>& local_flags() {
  static const std::vector<std::string> flags{"--head", "--join",      "--name",
                                              "--data", "--port-file", "--advertise"};
  return flags;
}

const std::vector<std::string>& local_variables() {
  static const std::vector<std::string> names{
      "TROUPE_HEAD",      "TROUPE_JOIN",      "TROUPE_NAME",  "TROUPE_DATA",
      "TROUPE_PORT_FILE", "TROUPE_ADVERTISE", "TROUPE_LISTEN"};
  return names;
}

error run_local_cluster(const LocalOptions& options) { return LocalCluster{options}.run(); }

}  // namespace troupe::cli
