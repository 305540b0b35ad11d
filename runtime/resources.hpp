// Why: placement needs to know what a node has. In a container or under Slurm that is less than what
// the machine has, so the limits are read where the kernel enforces them.
// Thread-safety: pure functions, but for reading files.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "net/error.hpp"

namespace troupe {

/// Where `detect_resources` looks; tests put a folder and values in place of the system.
struct ResourceProbe {
  /// Put before "/proc/…", "/sys/…" and "/dev".
  std::string root;
  /// Cores that the scheduler lets this process use; empty: asks the kernel.
  std::optional<double> affinity;
  /// CUDA_VISIBLE_DEVICES; empty: reads the environment.
  std::optional<std::string> cuda_visible;
};

/// "cpu": cores usable by affinity and cgroup quota, whole ones, at least 1. "memory": bytes, the
/// smaller of the machine's and the cgroup's; absent when unknown. "gpu": devices, absent when 0.
std::map<std::string, double> detect_resources(const ResourceProbe& probe = {});

/// "cpu=4,memory=8G,tokens=3": names and amounts from 0, with an optional K, M, G or T (powers of
/// 1024).
expected<std::map<std::string, double>> parse_resources(std::string_view text);

/// "zone=a,kind=gpu": names and values. A value may be empty.
expected<std::map<std::string, std::string>> parse_labels(std::string_view text);

}  // namespace troupe
