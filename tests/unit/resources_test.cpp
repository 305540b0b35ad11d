#include <catch2/catch.hpp>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "runtime/resources.hpp"

using namespace troupe;

namespace {

constexpr double kib = 1024.0;
constexpr double gib = kib * kib * kib;

/// A file system of its own, put in place of the machine's.
struct FakeRoot {
  FakeRoot()
      : path(std::filesystem::temp_directory_path() /
             ("troupe-resources-" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path);
    write("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1 kB\n");
  }
  ~FakeRoot() { std::filesystem::remove_all(path); }
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = path.string() + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::map<std::string, double> detect(double affinity = 16,
                                       std::optional<std::string> cuda = std::nullopt) const {
    ResourceProbe probe;
    probe.root = path.string();
    probe.affinity = affinity;
    probe.cuda_visible = std::move(cuda);
    return detect_resources(probe);
  }
  std::filesystem::path path;
};

using Resources = std::map<std::string, double>;

}  // namespace

TEST_CASE("resources: what this machine has") {
  const auto found = detect_resources();
  CHECK(found.at("cpu") >= 1);
  CHECK(found.at("memory") > kib * kib);
  CHECK((found.count("gpu") == 0 || found.at("gpu") > 0));
}

TEST_CASE("resources: without limits the machine's") {
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const FakeRoot root;
  CHECK(root.detect() == Resources{{"cpu", 16}, {"memory", 16 * gib}});
  CHECK(root.detect(3).at("cpu") == 3);
  ResourceProbe nothing;
  nothing.root = (root.path / "empty").string();
  nothing.affinity = 0;
  CHECK(detect_resources(nothing) == Resources{{"cpu", 1}});
}

TEST_CASE("resources: cgroup v2, also of the groups above") {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "0::/jobs/mine\n");
  root.write("/sys/fs/cgroup/jobs/mine/cpu.max", "max 100000\n");
  root.write("/sys/fs/cgroup/jobs/mine/memory.max", "max\n");
  CHECK(root.detect() == Resources{{"cpu", 16}, {"memory", 16 * gib}});
  root.write("/sys/fs/cgroup/jobs/mine/cpu.max", "350000 100000\n");
  root.write("/sys/fs/cgroup/jobs/mine/memory.max", "4294967296\n");
  CHECK(root.detect() == Resources{{"cpu", 3}, {"memory", 4 * gib}});
  root.write("/sys/fs/cgroup/jobs/cpu.max", "200000 100000\n");
  root.write("/sys/fs/cgroup/jobs/memory.max", "2147483648\n");
  CHECK(root.detect() == Resources{{"cpu", 2}, {"memory", 2 * gib}});
  root.write("/sys/fs/cgroup/jobs/mine/cpu.max", "20000 100000\n");
  CHECK(root.detect().at("cpu") == 1);
  // In a container its own group is mounted at the top, and the path is that of the host.
  root.write("/proc/self/cgroup", "0::/host/only/path\n");
  root.write("/sys/fs/cgroup/cpu.max", "500000 100000\n");
  CHECK(root.detect().at("cpu") == 5);
}

TEST_CASE("resources: cgroup v1") {
  const FakeRoot root;
  root.write("/proc/self/cgroup",
             "9:memory:/job\n4:cpu,cpuacct:/job\n3:cpuset:/\n1:name=systemd:/x\nnonsense\n");
  root.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  CHECK(root.detect() == Resources{{"cpu", 16}, {"memory", 16 * gib}});
  root.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "450000\n");
  CHECK(root.detect() == Resources{{"cpu", 4}, {"memory", gib}});
}

TEST_CASE("resources: devices") {
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const FakeRoot root;
  for (const char* name : {"nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "null"}) {
    root.write(std::string{"/dev/"} + name, "");
  }
  CHECK(root.detect().at("gpu") == 3);
  CHECK(root.detect(1, "0,2").at("gpu") == 2);
  CHECK(root.detect(1, "GPU-8932f937,MIG-1").at("gpu") == 2);
  CHECK(root.detect(1, "1,-1,2").at("gpu") == 1);
  CHECK(root.detect(1, "").count("gpu") == 0);
  CHECK(root.detect(1, "-1").count("gpu") == 0);
}

TEST_CASE("resources: given as text") {
  CHECK(*parse_resources("cpu=4,memory=8G,tokens=3") ==
        Resources{{"cpu", 4}, {"memory", 8 * gib}, {"tokens", 3}});
  CHECK(*parse_resources(" cpu = 0.5 , a=1K,b=1M,c=1T,d=0") ==
        Resources{{"cpu", 0.5}, {"a", kib}, {"b", kib * kib}, {"c", kib * gib}, {"d", 0}});
  CHECK(parse_resources("")->empty());
  for (const char* bad : {"cpu", "cpu=", "=4", "cpu=4,", "cpu=-1", "cpu=4X", "cpu=4GB", "cpu=nan",
                          "cpu=inf", "cpu=1,cpu=2", "c pu=1", "cpu=1e400", "cpu=G", "cpu=4=4"}) {
    INFO(bad);
    const auto parsed = parse_resources(bad);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().code() == ec::invalid_argument);
    CHECK(parsed.error().text().find("cpu=4,memory=8G") != std::string::npos);
  }
}

TEST_CASE("resources: labels given as text") {
  using Labels = std::map<std::string, std::string>;
  CHECK(*parse_labels("zone=a,kind=gpu") == Labels{{"zone", "a"}, {"kind", "gpu"}});
  CHECK(*parse_labels("example.org/x=,y = a=b") == Labels{{"example.org/x", ""}, {"y", "a=b"}});
  CHECK(parse_labels(" ")->empty());
  for (const std::string& bad : {std::string{"zone"}, std::string{"zone=a,zone=b"},
                                 std::string{"=a"}, std::string{"z=a,,y=b"}, std::string{"z=a\x01"},
                                 "z=" + std::string(257, 'a'), std::string(65, 'z') + "=a"}) {
    INFO(bad);
    REQUIRE_FALSE(parse_labels(bad));
  }
  std::string many;
  for (int i = 0; i < 65; ++i) {
    many += (i > 0 ? ",l" : "l") + std::to_string(i) + "=x";
  }
  CHECK_FALSE(parse_labels(many));
}
