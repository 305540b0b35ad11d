// Why: the types and fixtures that the tests of the message codec share.
#pragma once

#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <caf/all.hpp>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/wrappers.pb.h>

#include "net/caf_error.hpp"
#include "net/message_codec.hpp"

using namespace troupe;
using namespace troupe::net;

namespace skew_old {
struct Step {
  std::int32_t index = 0;
};
template <class Inspector>
auto inspect(Inspector& f, Step& x) {
  return f(x.index);
}
}  // namespace skew_old

namespace skew_new {
struct Step {
  std::int32_t index = 0;
  std::vector<float> observation = {9, 9};
};
template <class Inspector>
auto inspect(Inspector& f, Step& x) {
  return f(x.index, x.observation);
}
}  // namespace skew_new

namespace sample {

/// The generic `inspect` alone, with fields that CAF 0.17 cannot serialise.
struct Rollout {
  std::int64_t version = 0;
  std::vector<float> rewards;
  std::optional<std::string> note;
  NodeId node;
  Bytes blob;
  google::protobuf::StringValue label;
};
template <class Inspector>
auto inspect(Inspector& f, Rollout& x) {
  return f(x.version, x.rewards, x.note, x.node, x.blob, x.label);
}

/// As CAF's manual writes it.
struct CafStyle {
  int a = 0;
  std::string b;
};
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, CafStyle& x) {
  return f(caf::meta::type_name("CafStyle"), x.a, caf::meta::omittable_if_empty(), x.b);
}

/// Refuses values when loading.
struct Checked {
  int percent = 0;
};
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Checked& x) {
  auto check = [&]() -> caf::error {
    return x.percent <= 100 ? caf::none : caf::make_error(caf::sec::invalid_argument);
  };
  return f(x.percent, caf::meta::load_callback(check));
}

struct Team {
  std::string name;
  caf::actor leader;
  std::vector<caf::strong_actor_ptr> members;
  caf::actor_addr watched;
  caf::message last_words;
  caf::error reason;
};
template <class Inspector>
auto inspect(Inspector& f, Team& x) {
  return f(x.name, x.leader, x.members, x.watched, x.last_words, x.reason);
}

struct Opaque {
  std::map<std::string, std::optional<std::vector<Bytes>>> nested;
};
template <class Inspector>
auto inspect(Inspector& f, Opaque& x) {
  return f(x.nested);
}

struct Declared {
  std::chrono::duration<double, std::milli> pause{};
  std::vector<Opaque> parts;
};
template <class Inspector>
auto inspect(Inspector& f, Declared& x) {
  return f(x.pause, x.parts);
}

struct Thrower {
  int x = 0;
};
template <class Inspector>
bool inspect(Inspector&, Thrower& x) {
  if (x.x == 0) {
    throw std::runtime_error("inspect threw");
  }
  return true;
}

struct Stranger {
  int x = 0;
};
template <class Inspector>
auto inspect(Inspector& f, Stranger& x) {
  return f(x.x);
}

}  // namespace sample

TROUPE_ALLOW_MESSAGE(sample::Declared);
TROUPE_ALLOW_MESSAGE(sample::Thrower);

namespace message_fixture {

using namespace sample;

void fill(TypeRegistry& registry) {
  REQUIRE(registry.add<Rollout>("test.rollout"));
  REQUIRE(registry.add<CafStyle>("test.caf_style"));
  REQUIRE(registry.add<Checked>("test.checked"));
  REQUIRE(registry.add<Team>("test.team"));
  REQUIRE(registry.add<Declared>("test.declared"));
  REQUIRE(registry.add<Thrower>("test.thrower"));
  REQUIRE(registry.add<google::protobuf::ListValue>("test.list"));
  registry.freeze();
}

const TypeRegistry& types() {
  static TypeRegistry registry;
  static std::once_flag once;
  std::call_once(once, [] { fill(registry); });
  return registry;
}

/// A node that knows its own actors by number.
class FakeHandles final : public HandleCodec {
 public:
  expected<WireActor> export_actor(const caf::strong_actor_ptr& handle) override {
    known[handle->id()] = handle;
    return WireActor{NodeId{1, 2}, handle->id(), "127.0.0.1:4711"};
  }
  expected<caf::strong_actor_ptr> import_actor(const WireActor& actor) override {
    const auto it = known.find(actor.id);
    if (actor.node != NodeId{1, 2} || it == known.end()) {
      return fail(ec::node_unreachable, "no such node");
    }
    return it->second;
  }
  std::map<std::uint64_t, caf::strong_actor_ptr> known;
};

struct System {
  System() {
    config.set("scheduler.policy", caf::atom("sharing"));
    config.set("scheduler.max-threads", std::size_t{2});
    add_error_category(config);
    system = std::make_unique<caf::actor_system>(config);
  }
  caf::actor_system_config config;
  std::unique_ptr<caf::actor_system> system;
};

std::vector<std::byte> encoded(const caf::message& content, HandleCodec* handles = nullptr) {
  EncodedBody body;
  const error err = encode_message(types(), content, handles, body);
  INFO(to_string(err));
  REQUIRE_FALSE(err);
  return body.flatten();
}

caf::message round_trip(const caf::message& content, HandleCodec* handles = nullptr) {
  const auto body = encoded(content, handles);
  auto back = decode_message(types(), body, nullptr, handles);
  if (!back) {
    FAIL(to_string(back.error()));
  }
  REQUIRE(back->size() == content.size());
  return *back;
}

template <class T>
T same(const T& x, HandleCodec* handles = nullptr) {
  const caf::message back = round_trip(caf::make_message(x), handles);
  REQUIRE(back.match_element<T>(0));
  return back.get_as<T>(0);
}

template <class... Ts>
void check_equal(const Ts&... xs) {
  const auto check = [](const auto& x) { CHECK(same(x) == x); };
  (check(xs), ...);
}

template <class Condition>
bool eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

class CountingAccount final : public CreditAccount {
 public:
  void release(std::uint32_t lane, std::uint64_t bytes) noexcept override {
    released += bytes;
    last_lane = lane;
  }
  std::atomic<std::uint64_t> released{0};
  std::atomic<std::uint32_t> last_lane{0};
};

}  // namespace message_fixture

using namespace message_fixture;
