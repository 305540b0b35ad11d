// What `troupe status` prints for what a node answers, well-formed or not.
#include <catch2/catch.hpp>

#include "runtime/cli/status_table.hpp"
#include "runtime/cluster_json.hpp"

using namespace troupe;
using namespace troupe::cli;

namespace {

constexpr std::int64_t now = 1'796'040'000'000;  // 2026-11-30T12:00:00Z

Member member(std::uint64_t id, const std::string& name, MemberState state) {
  Member out;
  out.id = NodeId{id << 32U, id};
  out.incarnation = id;
  out.name = name;
  out.address = "127.0.0.1:" + std::to_string(4000 + id);
  out.pid = 100 + id;
  out.state = state;
  out.since_ms = now - static_cast<std::int64_t>(id) * 60'000;
  return out;
}

View view() {
  ViewSnapshot snapshot;
  snapshot.broker = {"demo", NodeId{0xABCDEF0100000000, 1}, 3, NodeId{1ULL << 32U, 1},
                     "127.0.0.1:4001"};
  snapshot.epoch = 17;
  auto head = member(1, "zeta", MemberState::up);
  head.head = true;
  head.resources = {{"cpu", 4.0}, {"memory", 16.0 * 1024 * 1024 * 1024}, {"gpu", 0.5}};
  head.labels = {{"zone", "a"}};
  auto suspect = member(2, "alpha", MemberState::suspect);
  suspect.draining = true;
  snapshot.members = {head, suspect, member(3, "gone", MemberState::down)};
  return View{snapshot};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::size_t begin = 0;
  for (auto end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  CHECK(begin == text.size());
  return out;
}

}  // namespace

TEST_CASE("the table of a cluster", "[status]") {
  const auto table = status_table(cluster_json(view()), now);
  REQUIRE(table);
  const auto lines = lines_of(*table);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] ==
        "cluster \"demo\" (abcdef01), epoch 17, broker 00000001 at 127.0.0.1:4001 "
        "(term 3): 1 up, 1 suspect, 1 down");
  CHECK(lines[1] ==
        "NAME    ID        ADDRESS         STATE             INC  PID  "
        "RESOURCES                 LABELS  SINCE");
  CHECK(lines[2] ==
        "alpha   00000002  127.0.0.1:4002  suspect,draining  2    102  "
        "-                         -       2m00s");
  CHECK(lines[3] ==
        "zeta *  00000001  127.0.0.1:4001  up                1    101  "
        "cpu=4,gpu=0.5,memory=16G  zone=a  1m00s");
  const auto all = status_table(cluster_json(view()), now, true);
  REQUIRE(all);
  CHECK(lines_of(*all).size() == 5);
  CHECK(all->find("gone") != std::string::npos);
}

TEST_CASE("names of other scripts keep the columns, controls do not reach the terminal",
          "[status]") {
  ViewSnapshot snapshot = view().snapshot();
  snapshot.members[0].name = "\xC3\xA4\xC3\xB6\xC3\xBC\x1B[2J\n\xC2\x9B";
  snapshot.members[1].name = std::string(200, 'x');
  snapshot.members[1].labels = {{"a\nb", "\x1B]0;title\x07"}};
  const auto table = status_table(cluster_json(View{snapshot}), now);
  REQUIRE(table);
  const auto lines = lines_of(*table);
  REQUIRE(lines.size() == 4);
  CHECK(table->find('\x1B') == std::string::npos);
  CHECK(table->find("\xC2\x9B") == std::string::npos);
  CHECK(table->find("\xC3\xA4\xC3\xB6\xC3\xBC?[2J??") != std::string::npos);
  CHECK(lines[2].size() < 250);
}

TEST_CASE("what is not the JSON of a cluster is refused or shown as far as it goes", "[status]") {
  for (const char* text : {"", "nonsense", "[]", "{}", "{\"nodes\":[],\"ended\":3}",
                           "{\"nodes\":[1],\"ended\":[]}", "{\"nodes\":{},\"ended\":[]}"}) {
    INFO(text);
    const auto table = status_table(text, now);
    REQUIRE_FALSE(table);
    CHECK(table.error() == ec::malformed);
  }
  const auto table = status_table(
      R"({"nodes":[{"name":5,"id":null,"state":["up"],"pid":-3,"resources":[],"labels":{"a":{}},"since":7}],"ended":[],"epoch":"x"})",
      now);
  REQUIRE(table);
  CHECK(lines_of(*table).size() == 3);
}

TEST_CASE("ages", "[status]") {
  CHECK(format_age(-5) == "0s");
  CHECK(format_age(59'999) == "59s");
  CHECK(format_age(60'000) == "1m00s");
  CHECK(format_age(3'600'000) == "1h00m");
  CHECK(format_age(86'400'000LL * 4 + 7 * 3'600'000) == "4d07h");
}

TEST_CASE("times survive being written and read", "[status]") {
  for (const std::int64_t ms :
       {std::int64_t{0}, std::int64_t{1}, now, now + 999, std::int64_t{253402300799999}}) {
    CHECK(parse_iso_time(iso_time(ms)) == ms);
  }
  for (const char* text :
       {"", "x", "2026-11-30T12:00:00Z", "2026-11-30T12:00:00.000Zx", "2026-11-30 12:00:00.000Z"}) {
    CHECK(parse_iso_time(text) < 0);
  }
}
