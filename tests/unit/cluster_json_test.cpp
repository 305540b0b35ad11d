// The shape of the JSON API, and that nothing a node says about itself breaks it.
#include <catch2/catch.hpp>

#include <limits>

#include <nlohmann/json.hpp>

#include "runtime/cluster_json.hpp"

using namespace troupe;
using nlohmann::json;

namespace {

View one_member(const Member& member) {
  ViewSnapshot snapshot;
  snapshot.broker = {"demo", NodeId{1, 2}, 3, NodeId{4, 5}, "127.0.0.1:4700"};
  snapshot.epoch = 9;
  snapshot.members = {member};
  return View{snapshot};
}

Member alpha() {
  Member out;
  out.id = NodeId{4, 5};
  out.incarnation = 7;
  out.name = "alpha";
  out.address = "127.0.0.1:4000";
  out.host = "box";
  out.build = "troupe 1";
  out.pid = 12;
  out.head = true;
  out.resources = {{"cpu", 4.0}, {"gpu", 0.5}};
  out.labels = {{"zone", "a"}};
  out.state = MemberState::up;
  out.reason = "confirmed";
  out.since_ms = 1'796'040'000'123;
  out.epoch = 8;
  return out;
}

}  // namespace

TEST_CASE("a view as JSON", "[cluster_json]") {
  const auto out = json::parse(cluster_json(one_member(alpha())));
  const auto expected = json::parse(R"({
    "cluster": "demo", "cluster_id": "00000000000000010000000000000002", "epoch": 9, "term": 3,
    "broker": "00000000000000040000000000000005", "broker_address": "127.0.0.1:4700",
    "nodes": [{"id": "00000000000000040000000000000005", "name": "alpha",
               "address": "127.0.0.1:4000", "host": "box", "state": "up", "draining": false,
               "head": true, "incarnation": 7, "pid": 12, "build": "troupe 1",
               "resources": {"cpu": 4, "gpu": 0.5}, "labels": {"zone": "a"},
               "reason": "confirmed", "since": "2026-11-30T12:00:00.123Z", "epoch": 8}],
    "ended": []})");
  INFO(out.dump(1));
  CHECK(out == expected);
  CHECK(out["nodes"][0]["resources"]["cpu"].is_number_integer());
  auto gone = alpha();
  gone.state = MemberState::down;
  const auto ended = json::parse(cluster_json(one_member(gone)));
  CHECK(ended["nodes"].empty());
  CHECK(ended["ended"][0]["state"] == "down");
  CHECK(json::parse(cluster_json(View{}))["nodes"].is_array());
}

TEST_CASE("events as JSON", "[cluster_json]") {
  MemberEvent event;
  event.seq = 3;
  event.time_ms = 1;
  event.epoch = 4;
  event.node = NodeId{4, 5};
  event.incarnation = 6;
  event.name = "alpha";
  event.address = "a:1";
  event.what = "down";
  event.reason = "silent";
  CHECK(json::parse(events_json({event})) == json::parse(R"({"events": [
    {"seq": 3, "time": "1970-01-01T00:00:00.001Z", "epoch": 4,
     "node": "00000000000000040000000000000005", "incarnation": 6, "name": "alpha",
     "address": "a:1", "what": "down", "reason": "silent"}]})"));
  CHECK(json::parse(events_json({})) == json::parse(R"({"events": []})"));
}

TEST_CASE("what a node says about itself cannot break the answer", "[cluster_json]") {
  auto member = alpha();
  member.name = "quote \" back \\ line \n nul " + std::string(1, '\0') + " bad \xFF\xC3";
  member.reason = std::string(100'000, 'r');
  member.host = std::string(511, 'h') + "\xC3\xA4";  // the cut must not split a character
  for (int i = 0; i < 1000; ++i) {
    member.labels["label" + std::to_string(i)] = std::string(10'000, 'v');
    member.resources["r" + std::to_string(i)] = i;
  }
  member.resources = {{"a", std::numeric_limits<double>::infinity()},
                      {"b", std::numeric_limits<double>::quiet_NaN()},
                      {"c", 1e300}};
  const auto text = cluster_json(one_member(member));
  CHECK(text.size() < 200'000);
  CHECK(text.find('\n') == text.size() - 1);
  const auto node = json::parse(text)["nodes"][0];
  CHECK(node["name"].get<std::string>().find("bad \xEF\xBF\xBD") != std::string::npos);
  CHECK(node["reason"].get<std::string>().size() < 600);
  CHECK(node["host"] == std::string(511, 'h') + "…");
  CHECK(node["labels"].size() == 64);
  CHECK(node["resources"]["a"].is_null());
  CHECK(node["resources"]["b"].is_null());
  CHECK(node["resources"]["c"] == 1e300);
}

TEST_CASE("times", "[cluster_json]") {
  CHECK(iso_time(0) == "1970-01-01T00:00:00.000Z");
  CHECK(iso_time(-1) == "1969-12-31T23:59:59.999Z");
  CHECK(iso_time(1'796'040'000'000) == "2026-11-30T12:00:00.000Z");
  CHECK(iso_time(std::numeric_limits<std::int64_t>::max()) == "9999-12-31T23:59:59.999Z");
  CHECK(iso_time(std::numeric_limits<std::int64_t>::min()) == "0000-01-01T00:00:00.000Z");
}

TEST_CASE("answers to orders and errors", "[cluster_json]") {
  CHECK(json::parse(accepted_json(NodeId{4, 5}, "draining")) ==
        json::parse(
            R"({"ok": true, "node": "00000000000000040000000000000005", "text": "draining"})"));
  CHECK(json::parse(error_json({ec::not_found, "no node \"x\""})) ==
        json::parse(R"({"error": {"code": "not_found", "text": "no node \"x\""}})"));
  CHECK(http_status_of(ec::none) == 200);
  CHECK(http_status_of(ec::not_found) == 404);
  for (int code = 1; code <= static_cast<int>(ec::refused); ++code) {
    CHECK(http_status_of(static_cast<ec>(code)) >= 400);
  }
}
