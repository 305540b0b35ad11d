#include "runtime/resources.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

namespace troupe {

namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();
/// What cgroup v1 says for "no limit": a number near 2^63.
constexpr double no_limit_v1 = 9e18;
constexpr std::size_t max_entries = 64;
constexpr std::size_t max_name = 64;
constexpr std::size_t max_value = 256;

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  return first == std::string_view::npos
             ? std::string_view{}
             : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

/// The first number in `text`; empty for "max" and for anything else.
std::optional<double> number(std::string_view text) {
  text = trimmed(text);
  double value = 0.0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return problem == std::errc{} ? std::optional{value} : std::nullopt;
}

struct Limits {
  double cores = unlimited;
  double bytes = unlimited;
};

void take(double& limit, std::optional<double> value) {
  if (value && *value > 0.0 && *value < limit) {
    limit = *value;
  }
}

void take_v2(Limits& limits, const std::string& folder) {
  const std::string cpu = read_text(folder + "/cpu.max");
  const auto space = cpu.find(' ');
  const auto quota = number(cpu);
  const auto period = space == std::string::npos ? std::nullopt : number(cpu.substr(space));
  if (quota && period && *period > 0.0) {
    take(limits.cores, *quota / *period);
  }
  take(limits.bytes, number(read_text(folder + "/memory.max")));
}

void take_v1(Limits& limits, const std::string& folder) {
  const auto quota = number(read_text(folder + "/cpu.cfs_quota_us"));
  const auto period = number(read_text(folder + "/cpu.cfs_period_us"));
  if (quota && period && *period > 0.0) {
    take(limits.cores, *quota / *period);
  }
  const auto bytes = number(read_text(folder + "/memory.limit_in_bytes"));
  if (bytes && *bytes < no_limit_v1) {
    take(limits.bytes, bytes);
  }
}

/// A limit of any group above holds too. Inside a container the path may name folders that are only
/// there outside; the walk then ends at the container's own group, which is mounted at the top.
template <class Take>
void walk_up(const std::string& top, std::string path, Take take_from) {
  for (;;) {
    take_from(top + path);
    if (path.empty()) {
      return;
    }
    path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
  }
}

Limits cgroup_limits(const std::string& root) {
  Limits limits;
  const std::string top = root + "/sys/fs/cgroup";
  std::istringstream lines(read_text(root + "/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/" || path.find("..") != std::string::npos) {
      path.clear();
    }
    if (controllers.empty()) {
      walk_up(top, path, [&](const std::string& folder) { take_v2(limits, folder); });
      continue;
    }
    std::istringstream names(controllers);
    for (std::string name; std::getline(names, name, ',');) {
      if (name == "cpu" || name == "memory") {
        const auto take_from = [&](const std::string& folder) { take_v1(limits, folder); };
        walk_up(top + "/" + name, path, take_from);
        walk_up(top + "/" + controllers, path, take_from);
      }
    }
  }
  return limits;
}

double affinity_of_process() {
  // The kernel refuses a set that is smaller than its own.
  for (int cores = CPU_SETSIZE; cores <= (1 << 18); cores *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(cores));
    if (set == nullptr) {
      break;
    }
    const std::size_t size = CPU_ALLOC_SIZE(static_cast<std::size_t>(cores));
    const int count = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (count > 0) {
      return count;
    }
  }
  return 1.0;
}

double memory_of_machine(const std::string& root) {
  std::istringstream lines(read_text(root + "/proc/meminfo"));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("MemTotal:", 0) == 0) {
      const auto kibibytes = number(std::string_view{line}.substr(9));
      return kibibytes ? *kibibytes * 1024.0 : unlimited;
    }
  }
  return unlimited;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto comma = text.find(',');
    parts.push_back(trimmed(text.substr(0, comma)));
    if (comma == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(comma + 1);
  }
}

/// CUDA's own rule: devices after the first that is not valid do not count.
double visible_devices(std::string_view text) {
  double count = 0.0;
  for (const std::string_view part : split(text)) {
    if (part.empty() || part.front() == '-' || part == "NoDevFiles" || part == "none" ||
        part == "void") {
      break;
    }
    count += 1.0;
  }
  return count;
}

double device_files(const std::string& root) {
  double count = 0.0;
  std::error_code failure;
  for (std::filesystem::directory_iterator entry(root + "/dev", failure), end;
       !failure && entry != end; entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    const std::string_view digits =
        std::string_view{name}.substr(std::min<std::size_t>(6, name.size()));
    if (name.rfind("nvidia", 0) == 0 && !digits.empty() &&
        digits.find_first_not_of("0123456789") == std::string_view::npos) {
      count += 1.0;
    }
  }
  return count;
}

double gpus(const ResourceProbe& probe) {
  std::optional<std::string> visible = probe.cuda_visible;
  if (!visible) {
    if (const char* text = std::getenv("CUDA_VISIBLE_DEVICES")) {
      visible = text;
    }
  }
  return visible ? visible_devices(*visible) : device_files(probe.root);
}

std::string quoted(std::string_view text) { return "'" + std::string{text.substr(0, 80)} + "'"; }

using Pairs = std::vector<std::pair<std::string_view, std::string_view>>;

/// "name=value,…" with names that are fit for one, each once.
expected<Pairs> parse_pairs(std::string_view text, const char* what, const char* example) {
  Pairs pairs;
  if (trimmed(text).empty()) {
    return pairs;
  }
  const auto refuse = [&](std::string_view part, const char* why) {
    return fail(ec::invalid_argument, std::string{what} + " " + quoted(part) + ": " + why +
                                          "; write them like \"" + example + "\"");
  };
  for (const std::string_view part : split(text)) {
    const auto equals = part.find('=');
    if (equals == std::string_view::npos) {
      return refuse(part, part.empty() ? "nothing between two commas" : "no '='");
    }
    const std::string_view name = trimmed(part.substr(0, equals));
    const std::string_view value = trimmed(part.substr(equals + 1));
    const auto fits = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
             c == '_' || c == '-' || c == '.' || c == '/';
    };
    if (name.empty() || name.size() > max_name || !std::all_of(name.begin(), name.end(), fits)) {
      return refuse(part, "a name has 1 to 64 letters, digits, '_', '-', '.' or '/'");
    }
    if (value.size() > max_value || std::any_of(value.begin(), value.end(), [](char c) {
          return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
        })) {
      return refuse(part, "a value has at most 256 bytes and no control characters");
    }
    if (std::any_of(pairs.begin(), pairs.end(), [&](const auto& p) { return p.first == name; })) {
      return refuse(part, "the name is there twice");
    }
    if (pairs.size() == max_entries) {
      return refuse(part, "more than 64 of them");
    }
    pairs.emplace_back(name, value);
  }
  return pairs;
}

/// 2^10 for 'K', …; 0 for what is no unit.
double unit_of(std::string_view text) {
  if (text.empty()) {
    return 1.0;
  }
  const auto position = std::string_view{"KMGT"}.find(text.front());
  return text.size() == 1 && position != std::string_view::npos
             ? std::exp2(10.0 * static_cast<double>(position + 1))
             : 0.0;
}

}  // namespace

std::map<std::string, double> detect_resources(const ResourceProbe& probe) {
  const Limits limits = cgroup_limits(probe.root);
  std::map<std::string, double> result;
  const double cores =
      std::min(probe.affinity ? *probe.affinity : affinity_of_process(), limits.cores);
  result["cpu"] = std::max(1.0, std::floor(cores));
  const double bytes = std::min(memory_of_machine(probe.root), limits.bytes);
  if (std::isfinite(bytes)) {
    result["memory"] = bytes;
  }
  if (const double devices = gpus(probe); devices > 0.0) {
    result["gpu"] = devices;
  }
  return result;
}

expected<std::map<std::string, double>> parse_resources(std::string_view text) {
  static constexpr auto example = "cpu=4,memory=8G,tokens=3";
  const auto pairs = parse_pairs(text, "resource", example);
  if (!pairs) {
    return fail(pairs.error());
  }
  std::map<std::string, double> result;
  for (const auto& [name, value] : *pairs) {
    double amount = 0.0;
    const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), amount,
                                                std::chars_format::fixed);
    const double unit = unit_of(value.substr(static_cast<std::size_t>(end - value.data())));
    if (problem != std::errc{} || unit == 0.0 || !std::isfinite(amount * unit) || amount < 0.0) {
      return fail(ec::invalid_argument,
                  "resource " + quoted(name) + ": " + quoted(value) +
                      " is not an amount (a number from 0, with K, M, G or T for powers of 1024); "
                      "write them like \"" +
                      example + "\"");
    }
    result.emplace(name, amount * unit);
  }
  return result;
}

expected<std::map<std::string, std::string>> parse_labels(std::string_view text) {
  const auto pairs = parse_pairs(text, "label", "zone=a,kind=gpu");
  if (!pairs) {
    return fail(pairs.error());
  }
  std::map<std::string, std::string> result;
  for (const auto& [name, value] : *pairs) {
    result.emplace(name, value);
  }
  return result;
}

}  // namespace troupe
