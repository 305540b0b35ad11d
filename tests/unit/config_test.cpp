// Layers of configuration, what is refused and with which words, and printing that reads back.
#include <catch2/catch.hpp>

#include <cstdlib>
#include <fstream>
#include <set>

#include "runtime/config.hpp"
#include "runtime/node_config.hpp"
#include "tests/unit/tls_support.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

std::vector<Setting> table() {
  using T = SettingType;
  return {{"top", "--top", "TROUPE_TOP", T::text, "t", ""},
          {"node.listen", "--listen", "TROUPE_LISTEN", T::text, "127.0.0.1:0", ""},
          {"node.head", "--head", "TROUPE_HEAD", T::boolean, "false", ""},
          {"node.slots", "--slots", "TROUPE_SLOTS", T::integer, "2", ""},
          {"node.phi", "--phi", "TROUPE_PHI", T::number, "8", ""},
          {"cluster.join", "--join", "TROUPE_JOIN", T::list, "", ""},
          {"node.labels", "--labels", "TROUPE_LABELS", T::map, "", ""},
          {"membership.lease", "--lease", "TROUPE_LEASE", T::duration, "10s", ""}};
}

class File {
 public:
  explicit File(const std::string& text) : path_((folder_.path() / "troupe.toml").string()) {
    std::ofstream{path_} << text;
  }
  const std::string& path() const { return path_; }

 private:
  net::test::TempDir folder_;
  std::string path_;
};

template <class T>
std::string why(const expected<T>& result) {
  REQUIRE_FALSE(result);
  CHECK(result.error() == ec::invalid_argument);
  CHECK(result.error().text().find('\n') == std::string::npos);
  return result.error().text();
}

void check_contains(const std::string& text, const std::vector<std::string>& parts) {
  INFO(text);
  for (const auto& part : parts) {
    INFO(part);
    CHECK(text.find(part) != std::string::npos);
  }
}

std::string file_problem(const std::string& text) {
  return why(parse_config_file(table(), text, "x.toml"));
}

bool same_values(const Config& a, const Config& b) {
  if (a.entries().size() != b.entries().size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.entries().size(); ++i) {
    if (a.entries()[i].value != b.entries()[i].value) {
      UNSCOPED_INFO(a.entries()[i].setting.key);
      return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("flags win over the environment, the environment over the file", "[config]") {
  const File file{
      "[node]\nlisten = \"file:1\"\nslots = 3\nphi = 5\n[membership]\nlease = \"1s\"\n"};
  ConfigSources sources;
  sources.file = file.path();
  sources.environment = {{"TROUPE_LISTEN", "env:2"}, {"TROUPE_SLOTS", "4"}, {"HOME", "x"}};
  sources.flags["--listen"] = {"flag:3"};
  const auto config = resolve_config(table(), sources);
  REQUIRE(config);
  CHECK(config->text("node.listen") == "flag:3");
  CHECK(config->origin("node.listen") == "flag --listen");
  CHECK(config->integer("node.slots") == 4);
  CHECK(config->origin("node.slots") == "environment TROUPE_SLOTS");
  CHECK(config->number("node.phi") == 5.0);
  CHECK(config->origin("node.phi") == file.path() + ":4");
  CHECK(config->duration("membership.lease") == 1s);
  CHECK_FALSE(config->boolean("node.head"));
  CHECK(config->origin("node.head") == "default");
  CHECK_THROWS_AS(config->text("nothing"), std::logic_error);
}

TEST_CASE("lists and maps from every source", "[config]") {
  const File file{
      "[cluster]\njoin = [\"a:1\", \"b,c:2\"]\n[node.labels]\nzone = \"a\"\nn = 4\n"
      "x = 0.5\nf = true\n"};
  ConfigSources sources;
  sources.file = file.path();
  auto config = resolve_config(table(), sources);
  REQUIRE(config);
  CHECK(config->list("cluster.join") == std::vector<std::string>{"a:1", "b,c:2"});
  CHECK(config->map("node.labels") ==
        std::map<std::string, std::string>{{"zone", "a"}, {"n", "4"}, {"x", "0.5"}, {"f", "true"}});
  sources.flags["--join"] = {"a:1,b:2", "c:3"};
  sources.environment = {{"TROUPE_LABELS", "zone=b, disk = ssd"}};
  config = resolve_config(table(), sources);
  REQUIRE(config);
  CHECK(config->list("cluster.join") == std::vector<std::string>{"a:1", "b:2", "c:3"});
  CHECK(config->map("node.labels") ==
        std::map<std::string, std::string>{{"zone", "b"}, {"disk", "ssd"}});
}

TEST_CASE("a misspelt key is told with its line and the nearest one", "[config]") {
  check_contains(file_problem("[node]\nhead = true\nlistne = \"x\"\n"),
                 {"x.toml:3", "node.listne", "node.listen"});
  check_contains(file_problem("\nlisten = \"x\"\n"), {"x.toml:2", "\"listen\"", "node.listen"});
  check_contains(file_problem("[nod]\nlisten = \"x\"\n"), {"x.toml:1", "nod"});
  check_contains(file_problem("\"node.listen\" = \"x\"\n"), {"x.toml:1", "unknown key"});
  // The first in the file, not the first in the alphabet.
  check_contains(file_problem("[node]\nzzz = 1\naaa = 2\n"), {"x.toml:2", "zzz"});
}

TEST_CASE("a value of the wrong type is told with its place", "[config]") {
  check_contains(file_problem("[node]\nlisten = 5\n"), {"x.toml:2", "node.listen", "a string"});
  check_contains(file_problem("[node]\nhead = \"yes\"\n"), {"x.toml:2", "true or false"});
  check_contains(file_problem("[node]\nslots = 1.5\n"), {"x.toml:2", "whole number"});
  check_contains(file_problem("[node]\nphi = nan\n"), {"x.toml:2", "a number"});
  check_contains(file_problem("[membership]\nlease = 10\n"), {"x.toml:2", "duration", "\"10s\""});
  check_contains(file_problem("[membership]\nlease = \"10x\"\n"), {"x.toml:2", "\"10x\""});
  check_contains(file_problem("[cluster]\njoin = \"a\"\n"), {"x.toml:2", "list of strings"});
  check_contains(file_problem("[cluster]\njoin = [1]\n"), {"x.toml:2", "list of strings"});
  check_contains(file_problem("[node]\nlabels = \"a=b\"\n"), {"x.toml:2", "table"});
  check_contains(file_problem("[node]\nlabels = {a = [1]}\n"), {"x.toml:2", "table"});
  check_contains(file_problem("node = 4\n"), {"x.toml:1", "[node]"});
  check_contains(file_problem("[node]\nlisten = \"a\\u0000b\"\n"), {"x.toml:2", "NUL"});
  check_contains(file_problem("[node]\nlisten = \n"), {"x.toml:2", "TOML"});
  check_contains(file_problem("[node]\nlisten = 'a'\nlisten = 'b'\n"), {"x.toml:3"});

  ConfigSources sources;
  sources.flags["--slots"] = {"many"};
  check_contains(why(resolve_config(table(), sources)), {"--slots", "\"many\"", "whole number"});
  sources.flags.clear();
  sources.environment = {{"TROUPE_LEASE", "-5s"}};
  check_contains(why(resolve_config(table(), sources)), {"TROUPE_LEASE", "duration"});
  sources.environment = {{"TROUPE_LABELS", "a"}};
  check_contains(why(resolve_config(table(), sources)), {"TROUPE_LABELS", "k=v"});
  sources.environment = {{"TROUPE_LABELS", "a=1,a=2"}};
  check_contains(why(resolve_config(table(), sources)), {"twice"});
  sources.environment = {{"TROUPE_JOIN", "a,,b"}};
  check_contains(why(resolve_config(table(), sources)), {"empty entry"});
  sources.environment = {{"TROUPE_LISTEN", "\xFF"}};
  check_contains(why(resolve_config(table(), sources)), {"UTF-8"});
}

TEST_CASE("a file that cannot be read is refused", "[config]") {
  ConfigSources sources;
  sources.file = "/nonexistent/x.toml";
  check_contains(why(resolve_config(table(), sources)), {"/nonexistent/x.toml", "No such file"});
  const net::test::TempDir folder;
  sources.file = folder.path().string();
  check_contains(why(resolve_config(table(), sources)), {"folder"});
  const File large{std::string((std::size_t{1} << 20U) + 1, '#')};
  sources.file = large.path();
  check_contains(why(resolve_config(table(), sources)), {"1 MiB"});
}

TEST_CASE("an unknown variable of ours is refused, others are nobody's business", "[config]") {
  ConfigSources sources;
  sources.environment = {{"TROUPE_LISTN", "x"}};
  check_contains(why(resolve_config(table(), sources)), {"TROUPE_LISTN", "TROUPE_LISTEN"});
  sources.environment = {{"TROUPE_SEED", "1"},
                         {"TROUPE_SIM_SEEDS", "1"},
                         {"TROUPE_FAULT_CLOCK_OFFSET_MS", "1"},
                         {"TROUPE_TEST_X", "1"},
                         {"TROUPE_CLUSTER", "1"},
                         {"TROUPE_LISTN", ""},
                         {"LISTEN", "x"},
                         // Of Kubernetes, for services called troupe and troupe-head.
                         {"TROUPE_PORT", "tcp://10.0.0.1:4700"},
                         {"TROUPE_SERVICE_HOST", "10.0.0.1"},
                         {"TROUPE_HEAD_SERVICE_PORT_HTTP", "4700"},
                         {"TROUPE_HEAD_PORT_4700_TCP_ADDR", "10.0.0.1"}};
  const auto config = resolve_config(table(), sources);
  REQUIRE(config);
  CHECK(config->origin("node.listen") == "default");
}

TEST_CASE("TROUPE_CONFIG names the file unless a flag does", "[config]") {
  const File first{"top = \"first\"\n"};
  const File second{"top = \"second\"\n"};
  ConfigSources sources;
  sources.environment = {{"TROUPE_CONFIG", first.path()}};
  auto config = resolve_config(table(), sources);
  REQUIRE(config);
  CHECK(config->text("top") == "first");
  sources.file = second.path();
  config = resolve_config(table(), sources);
  REQUIRE(config);
  CHECK(config->text("top") == "second");
}

TEST_CASE("what is printed reads back as the same configuration", "[config]") {
  ConfigSources sources;
  sources.flags["--top"] = {"quotes \" \\ and \t tab, \xC3\xA4"};
  sources.flags["--labels"] = {"a b=c\"d,x=1"};
  sources.flags["--join"] = {"a:1", "b:2"};
  sources.flags["--phi"] = {"1e300"};
  sources.flags["--lease"] = {"1.5s"};
  sources.environment = {{"TROUPE_HEAD", "true"}};
  const auto config = resolve_config(table(), sources);
  REQUIRE(config);
  const std::string text = config->print();
  INFO(text);
  check_contains(text, {"# flag --top\n", "# environment TROUPE_HEAD\n", "# default\n",
                        "\"1500ms\"", "[membership]\n"});
  const File file{text};
  ConfigSources again;
  again.file = file.path();
  const auto back = resolve_config(table(), again);
  REQUIRE(back);
  CHECK(same_values(*config, *back));
  for (const auto& entry : back->entries()) {
    CHECK(entry.origin.find("troupe.toml:") != std::string::npos);
  }
  // And once more, now with the places in the file as comments.
  CHECK(back->print().find("troupe.toml:1\n") != std::string::npos);
}

TEST_CASE("durations", "[config]") {
  CHECK(parse_duration("500ms") == 500ms);
  CHECK(parse_duration("10s") == 10s);
  CHECK(parse_duration("2m") == 2min);
  CHECK(parse_duration("1.5h") == 90min);
  CHECK(parse_duration("0ms") == 0ms);
  CHECK(parse_duration("0.1s") == 100ms);
  for (const char* wrong : {"", "5", "ms", "-1s", "1 s", "1d", "1e3s", ".s", "1..5s", "0.5ms",
                            "99999999999999999999h", "1s2"}) {
    INFO(wrong);
    CHECK_FALSE(parse_duration(wrong));
  }
  for (const auto ms : {0, 1, 999, 1000, 1500, 60'000, 61'000, 3'600'000, 5'400'000}) {
    const std::chrono::milliseconds duration{ms};
    CHECK(parse_duration(format_duration(duration)) == duration);
  }
}

TEST_CASE("settings of a node", "[config][node]") {
  ConfigSources sources;
  SECTION("defaults") {
    const auto loaded = load_node_config(sources);
    REQUIRE(loaded);
    const auto& settings = loaded->settings;
    CHECK(settings.listen == "127.0.0.1:0");
    CHECK(settings.cluster == "troupe");
    CHECK_FALSE(settings.name.empty());
    CHECK(settings.resources.at("cpu") >= 1);
    CHECK(settings.resources.at("memory") > 1e6);
    CHECK(settings.slots >= 1);
    const MembershipTimes lan;
    CHECK(settings.times.lease == lan.lease);
    CHECK(settings.times.suspect_phi == lan.suspect_phi);
    CHECK(settings.times.observers == lan.observers);
    CHECK(settings.link_grace == 10s);
    CHECK_FALSE(settings.tls.enabled());
  }
  SECTION("a head listens where others find it, and a profile sets the times") {
    sources.flags["--head"] = {"true"};
    sources.flags["--profile"] = {"loopback"};
    sources.flags["--down-after"] = {"3s"};
    const auto loaded = load_node_config(sources);
    REQUIRE(loaded);
    const auto loopback = MembershipTimes::loopback();
    CHECK(loaded->settings.listen == "127.0.0.1:4700");
    CHECK(loaded->settings.times.lease == loopback.lease);
    CHECK(loaded->settings.times.heartbeat_interval == loopback.heartbeat_interval);
    CHECK(loaded->settings.times.down_after == 3s);
    const File file{loaded->config.print()};
    ConfigSources again;
    again.file = file.path();
    const auto back = load_node_config(again);
    REQUIRE(back);
    CHECK(same_values(loaded->config, back->config));
    CHECK(back->settings.head);
    CHECK(back->settings.times.lease == loopback.lease);
  }
  SECTION("everything that can be given arrives") {
    sources.flags = {
        {"--listen", {"[::1]:0"}},
        {"--advertise", {"host:4000"}},
        {"--name", {"alpha"}},
        {"--cluster-name", {"demo"}},
        {"--tls", {"pki"}},
        {"--tls-key", {"other.key"}},
        {"--join", {"a:1,[::1]:2", "srv:_troupe._tcp.example.org,file:/x,lan,lan:239.1.2.3:4"}},
        {"--discover", {"lan"}},
        {"--data", {"data"}},
        {"--resources", {"cpu=3,memory=2G,gpu=0.5"}},
        {"--labels", {"zone=a"}},
        {"--log-level", {"debug"}},
        {"--port-file", {"p"}},
        {"--insecure", {"true"}},
        {"--link-grace", {"0ms"}}};
    const auto loaded = load_node_config(sources);
    REQUIRE(loaded);
    const auto& settings = loaded->settings;
    CHECK(settings.tls.ca_file == "pki/ca.pem");
    CHECK(settings.tls.cert_file == "pki/alpha.pem");
    CHECK(settings.tls.key_file == "other.key");
    CHECK(settings.join == std::vector<std::string>{"a:1", "[::1]:2",
                                                    "srv:_troupe._tcp.example.org", "file:/x",
                                                    "lan", "lan:239.1.2.3:4"});
    CHECK(settings.resources ==
          std::map<std::string, double>{{"cpu", 3.0}, {"memory", 2147483648.0}, {"gpu", 0.5}});
    CHECK(settings.slots == 3);
    CHECK(settings.labels.at("zone") == "a");
    CHECK(settings.link_grace == 0s);
    CHECK(settings.advertise == "host:4000");
    CHECK(settings.insecure);
  }
}

TEST_CASE("settings that make no sense are refused with the place", "[config][node]") {
  struct Case {
    std::string flag;
    std::string value;
    std::string told;
  };
  const std::vector<Case> cases{{"--listen", "nonsense", "nonsense"},
                                {"--advertise", "host:0", "port"},
                                {"--name", "", "1 to 64"},
                                {"--name", std::string(65, 'x'), "1 to 64"},
                                {"--name", "a\nb", "control"},
                                {"--cluster-name", "", "1 to 64"},
                                {"--join", "nohost", "nohost"},
                                {"--join", "a:0", "port"},
                                {"--join", "srv:", "srv:"},
                                {"--join", "lan:239.0.0.1", "239.0.0.1"},
                                {"--discover", "wan", "wan"},
                                {"--resources", "cpu=-1", "negative"},
                                {"--resources", "cpu=many", "many"},
                                {"--resources", "cpu=1X", "1X"},
                                {"--resources", "cpu=inf", "inf"},
                                {"--slots", "-1", "between"},
                                {"--log-level", "loud", "loud"},
                                {"--profile", "wan", "wan"},
                                {"--lease", "600ms", "four heartbeat intervals"},
                                {"--heartbeat-interval", "0ms", "between"},
                                {"--suspect-phi", "0", "above 0"},
                                {"--lone-down-after", "1s", "down_after"},
                                {"--observers", "17", "between"},
                                {"--link-grace", "25h", "between"}};
  for (const auto& wrong : cases) {
    INFO(wrong.flag << " " << wrong.value);
    ConfigSources sources;
    sources.flags[wrong.flag] = {wrong.value};
    check_contains(why(load_node_config(sources)), {wrong.told, "flag " + wrong.flag});
  }
  ConfigSources both;
  both.flags = {{"--head", {"true"}}, {"--join", {"a:1"}}};
  // A head asks there first whether the cluster has a head already.
  CHECK(load_node_config(both).has_value());
}

TEST_CASE("the table of a node's settings has no name twice", "[config][node]") {
  std::set<std::string> seen;
  for (const auto& setting : node_setting_table()) {
    INFO(setting.key);
    CHECK(seen.insert(setting.key).second);
    CHECK((setting.flag.empty() || seen.insert(setting.flag).second));
    CHECK((setting.env.empty() || seen.insert(setting.env).second));
    CHECK_FALSE(setting.help.empty());
    CHECK(parse_setting(setting.type, setting.fallback));
  }
}
