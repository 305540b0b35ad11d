// Remote actors behave as local ones: two or three nodes in this process, over real sockets.
#include <caf/all.hpp>
#include <catch2/catch.hpp>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cmath>

#include "net/caf_error.hpp"
#include "runtime/node.hpp"
#include "tests/support/messages.hpp"
#include "tests/support/process.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;

namespace {

const bool quiet = [] {
  spdlog::set_level(spdlog::level::err);  // warnings are provoked on purpose
  return true;
}();

constexpr auto patience = 20s;

std::unique_ptr<Node> start_node(const std::string& name, bool with_secret = false,
                                 const std::function<void(NodeOptions&)>& change = {}) {
  NodeOptions options;
  options.name = name;
  options.cluster = "mesh-test";
  options.heartbeats = false;
  options.types = [with_secret](net::TypeRegistry& registry) -> expected<void> {
    if (auto added = add_test_types(registry); !added) {
      return added;
    }
    return with_secret ? registry.add<Secret>("test.secret") : expected<void>{};
  };
  if (change) {
    change(options);
  }
  auto node = Node::start(std::move(options));
  REQUIRE(node);
  return std::move(*node);
}

caf::behavior echo(caf::event_based_actor* self) {
  return {
      [](const Numbered& x) { return x; },
      [](std::uint64_t x) { return x; },
      [](const std::string& x) { return x; },
      [](const std::vector<double>& x) { return x; },
      [](const net::Bytes& x) { return x; },
      [](caf::put_atom) {},  // a response without content
      [](std::int32_t) -> caf::result<std::int32_t> {
        return make_caf_error(ec::conflict, "no int32 here");
      },
      [](float) -> float { throw std::runtime_error("floats throw"); },
      [self](caf::ok_atom) {
        self->quit();
        return std::string{"bye"};
      },
  };
}

// Two linked nodes; actors of `b` seen from `a`.
struct Pair {
  std::unique_ptr<Node> a = start_node("a");
  std::unique_ptr<Node> b;
  caf::scoped_actor self;

  explicit Pair(std::unique_ptr<Node> other = start_node("b"))
      : b(std::move(other)), self(a->system()) {
    const auto peer = a->mesh().connect_wait(b->address());
    REQUIRE(peer);
    REQUIRE(*peer == b->id());
  }

  ~Pair() {
    a->stop();
    b->stop();
  }

  caf::actor remote(const caf::actor& actor, const std::string& name = "target",
                    net::Lane lane = net::Lane::user) {
    b->mesh().publish(name, actor, lane);
    auto found = a->mesh().find_wait(b->id(), name);
    REQUIRE(found);
    b->mesh().unpublish(name);
    return *found;
  }

  template <class Out, class... In>
  expected<Out> ask(const caf::actor& target, In&&... in) {
    expected<Out> result = fail(ec::timeout, "no answer");
    self->request(target, patience, std::forward<In>(in)...)
        .receive([&](Out& out) { result = std::move(out); },
                 [&](const caf::error& err) { result = fail(to_error(err)); });
    return result;
  }

  template <class... In>
  caf::error ask_error(const caf::actor& target, In&&... in) {
    caf::error result;
    self->request(target, patience, std::forward<In>(in)...)
        .receive([&](const caf::message&) {}, [&](const caf::error& err) { result = err; });
    return result;
  }

  bool tables_empty() {
    const auto at_a = a->mesh().table_sizes(b->id());
    const auto at_b = b->mesh().table_sizes(a->id());
    return at_a.proxies == 0 && at_a.pending == 0 && at_b.exports == 0 && at_b.pending == 0;
  }
};

}  // namespace

TEST_CASE("requests to a remote actor are answered", "[mesh]") {
  Pair pair;
  const auto target = pair.remote(pair.b->system().spawn(echo));
  CHECK(pair.ask<std::uint64_t>(target, std::uint64_t{7}).value() == 7);
  CHECK(pair.ask<std::string>(target, std::string{"hello"}).value() == "hello");
  const auto numbered = pair.ask<Numbered>(target, Numbered{3, "three"});
  REQUIRE(numbered);
  CHECK(numbered->number == 3);
  CHECK(numbered->text == "three");
  bool empty = false;
  pair.self->request(target, patience, caf::put_atom_v)
      .receive([&] { empty = true; }, [](const caf::error& err) { FAIL(describe(err)); });
  CHECK(empty);
  CHECK(pair.ask_error(target, std::int32_t{1}) == ec::conflict);
  CHECK(describe(pair.ask_error(target, std::int32_t{1})).find("no int32 here") !=
        std::string::npos);
  // An exception in the handler ends the actor, as it does locally.
  CHECK(pair.ask_error(target, 1.0F));
  CHECK(pair.ask_error(target, std::uint64_t{7}) == caf::sec::request_receiver_down);
}

TEST_CASE("NaN, infinities, -0 and denormals cross bit for bit; so do 100 MB", "[mesh]") {
  Pair pair;
  const auto target = pair.remote(pair.b->system().spawn(echo));
  const std::vector<double> odd{NAN, -NAN, INFINITY, -INFINITY, -0.0, 5e-324, 1e-310, 0.0};
  const auto back = pair.ask<std::vector<double>>(target, odd);
  REQUIRE(back);
  REQUIRE(back->size() == odd.size());
  CHECK(std::memcmp(back->data(), odd.data(), odd.size() * sizeof(double)) == 0);
  CHECK(pair.ask<std::vector<double>>(target, std::vector<double>{}).value().empty());
  std::vector<double> large(100'000'000 / sizeof(double));
  for (std::size_t i = 0; i < large.size(); ++i) {
    large[i] = static_cast<double>(i) * 0.5;
  }
  const auto large_back = pair.ask<std::vector<double>>(target, large);
  REQUIRE(large_back);
  CHECK(*large_back == large);
  const auto bytes = net::Bytes::copy_of(std::as_bytes(std::span{large}));
  const auto bytes_back = pair.ask<net::Bytes>(target, bytes);
  REQUIRE(bytes_back);
  CHECK(*bytes_back == bytes);
  const std::string text(64U << 20U, 'x');
  const auto text_back = pair.ask<std::string>(target, text);
  REQUIRE(text_back);
  CHECK(*text_back == text);
}

TEST_CASE("a type that the receiver does not know gives the requester an error", "[mesh]") {
  Pair pair{start_node("b")};
  auto with = start_node("c", true);
  const auto actor = pair.b->system().spawn(echo);
  pair.b->mesh().publish("target", actor);
  const auto peer = with->mesh().connect_wait(pair.b->address());
  REQUIRE(peer);
  const auto target = with->mesh().find_wait(*peer, "target");
  REQUIRE(target);
  {
    caf::scoped_actor self{with->system()};
    caf::error err;
    self->request(*target, patience, Secret{1})
        .receive([](const caf::message&) {}, [&](const caf::error& e) { err = e; });
    INFO(describe(err));
    CHECK(err == ec::unknown_type);
    self->send(*target, Secret{2});
    CHECK(eventually([&] { return pair.b->mesh().counters().unknown_types.load() == 2; }));
    CHECK(eventually([&] { return with->mesh().counters().undeliverable.load() == 1; }));
    // Not registered on the sending side: the error comes without a round trip.
    caf::error local;
    const auto back = pair.remote(actor);
    pair.self->request(back, patience, Secret{3})
        .receive([](const caf::message&) {}, [&](const caf::error& e) { local = e; });
    CHECK(local == ec::unknown_type);
  }
  pair.b->mesh().unpublish("target");
  with->stop();
}

TEST_CASE("delegation reaches the requester, also when the delegator dies", "[mesh]") {
  Pair pair;
  const auto worker = pair.b->system().spawn(echo);
  const auto dispatcher = pair.b->system().spawn([worker](caf::event_based_actor* self) {
    return caf::behavior{
        [=](const std::string& text) {
          self->quit();
          return self->delegate(worker, text);
        },
        [=](std::uint64_t number) { return self->delegate(worker, number); },
    };
  });
  const auto target = pair.remote(dispatcher);
  for (std::uint64_t i = 0; i < 100; ++i) {
    CHECK(pair.ask<std::uint64_t>(target, i).value() == i);
  }
  CHECK(pair.ask<std::string>(target, std::string{"last words"}).value() == "last words");
  // Delegated across nodes: from a to b and back to an actor of a.
  const auto home = pair.a->system().spawn(echo);
  pair.a->mesh().publish("home", home);
  const auto home_seen_from_b = pair.b->mesh().find_wait(pair.a->id(), "home");
  REQUIRE(home_seen_from_b);
  const auto back =
      pair.remote(pair.b->system().spawn([to = *home_seen_from_b](caf::event_based_actor* self) {
        return caf::behavior{[=](std::uint64_t number) { return self->delegate(to, number); }};
      }));
  for (std::uint64_t i = 0; i < 200; ++i) {
    REQUIRE(pair.ask<std::uint64_t>(back, i).value_or(9999) == i);
  }
  CHECK(eventually([&] { return pair.a->mesh().table_sizes(pair.b->id()).pending == 0; }));
  // Through b to a third node, which then is lost.
  auto c = start_node("c");
  REQUIRE(c->mesh().connect_wait(pair.b->address()));
  const auto far =
      c->system().spawn([](caf::stateful_actor<std::vector<caf::response_promise>>* self) {
        return caf::behavior{
            [](std::uint64_t number) { return number; },
            [=](const std::string&) {
              self->state.push_back(self->make_response_promise());
              return self->state.back();
            },
        };
      });
  c->mesh().publish("far", far);
  const auto far_seen_from_b = pair.b->mesh().find_wait(c->id(), "far");
  REQUIRE(far_seen_from_b);
  const auto relay =
      pair.remote(pair.b->system().spawn([to = *far_seen_from_b](caf::event_based_actor* self) {
        return caf::behavior{
            [=](std::uint64_t number) { return self->delegate(to, number); },
            [=](const std::string& text) { return self->delegate(to, text); },
        };
      }));
  for (std::uint64_t i = 0; i < 200; ++i) {
    REQUIRE(pair.ask<std::uint64_t>(relay, i).value_or(9999) == i);
  }
  CHECK(eventually([&] {
    return pair.b->mesh().table_sizes(c->id()).pending == 0 &&
           pair.b->mesh().table_sizes(c->id()).exports <= 1;
  }));
  auto lost = pair.self->request(relay, patience, std::string{"never answered"});
  REQUIRE(eventually([&] { return pair.b->mesh().table_sizes(c->id()).pending == 1; }));
  c->mesh().unpublish("far");
  c->mesh().shutdown();
  caf::error reason;
  lost.receive([](const std::string&) {}, [&](const caf::error& err) { reason = err; });
  CHECK(reason == ec::may_have_executed);
  caf::anon_send_exit(far, caf::exit_reason::kill);
  c->stop();
  pair.a->mesh().unpublish("home");
  caf::anon_send_exit(home, caf::exit_reason::user_shutdown);
  caf::anon_send_exit(worker, caf::exit_reason::user_shutdown);
}

TEST_CASE("a promise is kept later, and a broken one is told at once", "[mesh]") {
  Pair pair;
  struct State {
    caf::response_promise promise;
  };
  const auto keeper = pair.b->system().spawn([](caf::stateful_actor<State>* self) {
    return caf::behavior{
        [=](const std::string&) {
          self->state.promise = self->make_response_promise();
          return self->state.promise;
        },
        [=](std::uint64_t number) { self->state.promise.deliver(number); },
        [=](caf::ok_atom) { self->state.promise = {}; },
        [=](caf::error& reason) { self->quit(reason); },
    };
  });
  const auto target = pair.remote(keeper);
  for (int way = 0; way < 3; ++way) {
    std::optional<std::uint64_t> value;
    caf::error err;
    auto handle = pair.self->request(target, patience, std::string{"later"});
    if (way == 0) {
      pair.self->send(target, std::uint64_t{42});
    } else if (way == 1) {
      pair.self->send(target, caf::ok_atom_v);
    } else {
      pair.self->send(target, make_caf_error(ec::conflict, "enough"));
    }
    handle.receive([&](std::uint64_t x) { value = x; }, [&](const caf::error& e) { err = e; });
    if (way == 0) {
      CHECK(value == 42U);
    } else {
      CHECK_FALSE(value);
      CHECK(err == ec::may_have_executed);
    }
  }
}

TEST_CASE("monitors hear why a remote actor ended", "[mesh]") {
  Pair pair;
  const auto wait_down = [&](const caf::actor& target) {
    std::optional<caf::error> reason;
    pair.self->receive(
        [&](caf::down_msg& msg) {
          CHECK(msg.source == target.address());
          reason = msg.reason;
        },
        caf::after(patience) >> [] {});
    return reason;
  };
  SECTION("a normal end") {
    const auto target = pair.remote(pair.b->system().spawn(echo));
    pair.self->monitor(target);
    pair.self->send(target, caf::ok_atom_v);
    const auto reason = wait_down(target);
    REQUIRE(reason);
    CHECK_FALSE(*reason);
    CHECK(pair.ask_error(target, std::uint64_t{1}) == caf::sec::request_receiver_down);
  }
  SECTION("an error, and a monitor that comes late") {
    const auto target = pair.remote(pair.b->system().spawn(echo));
    pair.self->monitor(target);
    pair.self->send_exit(target, make_caf_error(ec::limit_exceeded, "too much"));
    const auto reason = wait_down(target);
    REQUIRE(reason);
    CHECK(*reason == ec::limit_exceeded);
    pair.self->monitor(target);
    const auto again = wait_down(target);
    REQUIRE(again);
    CHECK(*again == ec::limit_exceeded);
  }
  SECTION("a monitor without a handle is kept, a removed one is silent") {
    const auto actor = pair.b->system().spawn(echo);
    {
      const auto target = pair.remote(actor);
      pair.self->monitor(target);
    }
    const auto second = pair.b->system().spawn(echo);
    const auto target = pair.remote(second);
    pair.self->monitor(target);
    pair.self->demonitor(target);
    caf::anon_send_exit(second, caf::exit_reason::kill);
    CHECK(eventually([&] {
      return pair.ask_error(target, std::uint64_t{1}) == caf::sec::request_receiver_down;
    }));
    caf::anon_send_exit(actor, caf::exit_reason::kill);
    bool heard = false;
    pair.self->receive(
        [&](caf::down_msg& msg) {
          heard = true;
          CHECK(msg.reason == caf::exit_reason::kill);
        },
        caf::after(patience) >> [] {});
    CHECK(heard);
  }
}

TEST_CASE("links across nodes end both sides, unlinked ones live on", "[mesh]") {
  Pair pair;
  const auto make_linked = [&](const caf::actor& target, bool unlink) {
    return pair.a->system().spawn([target, unlink](caf::event_based_actor* self) {
      self->link_to(target);
      if (unlink) {
        self->unlink_from(target);
      }
      return caf::behavior{[](std::uint64_t x) { return x; }};
    });
  };
  const auto wait_down = [&](const caf::actor& target) {
    pair.self->monitor(target);
    caf::error reason;
    bool heard = false;
    pair.self->receive(
        [&](caf::down_msg& msg) {
          reason = msg.reason;
          heard = true;
        },
        caf::after(patience) >> [] {});
    CHECK(heard);
    return reason;
  };
  SECTION("the remote one dies") {
    const auto target = pair.remote(pair.b->system().spawn(echo));
    const auto local = make_linked(target, false);
    CHECK(pair.ask<std::uint64_t>(local, std::uint64_t{1}).value() == 1);
    pair.self->send_exit(target, caf::exit_reason::kill);
    CHECK(wait_down(local) == caf::exit_reason::kill);
  }
  SECTION("the local one dies") {
    const auto target = pair.remote(pair.b->system().spawn(echo));
    const auto local = make_linked(target, false);
    CHECK(pair.ask<std::uint64_t>(local, std::uint64_t{1}).value() == 1);
    pair.self->send_exit(local, make_caf_error(ec::conflict, "linked"));
    CHECK(wait_down(target) == ec::conflict);
  }
  SECTION("unlinked") {
    const auto target = pair.remote(pair.b->system().spawn(echo));
    const auto local = make_linked(target, true);
    CHECK(pair.ask<std::uint64_t>(local, std::uint64_t{1}).value() == 1);
    CHECK(pair.ask<std::uint64_t>(target, std::uint64_t{1}).value() == 1);
    caf::anon_send_exit(local, caf::exit_reason::kill);
    CHECK(wait_down(local) == caf::exit_reason::kill);
    CHECK(pair.ask<std::uint64_t>(target, std::uint64_t{1}).value() == 1);
    pair.self->send_exit(target, caf::exit_reason::kill);
    CHECK(wait_down(target) == caf::exit_reason::kill);
  }
}

TEST_CASE("a handle in a message works on a third node, without the one in between", "[mesh]") {
  Pair pair;
  auto c = start_node("c");
  REQUIRE(c->mesh().connect_wait(pair.a->address()));
  const auto actor = c->system().spawn(echo);
  c->mesh().publish("origin", actor);
  const auto seen_from_a = pair.a->mesh().find_wait(c->id(), "origin");
  REQUIRE(seen_from_a);
  // b receives the handle from a and asks c directly.
  const auto asker = pair.b->system().spawn([](caf::event_based_actor* self) {
    return caf::behavior{[=](const HandleBox& box) {
      auto promise = self->make_response_promise();
      // CAF keeps an actor alive until its timers have run out.
      self->request(box.handle, 3s, std::string{box.label})
          .then([=](const std::string& text) mutable { promise.deliver(text + "!"); },
                [=](caf::error& err) mutable { promise.deliver(std::move(err)); });
      return promise;
    }};
  });
  const auto target = pair.remote(asker);
  CHECK(pair.ask<std::string>(target, HandleBox{"via b", *seen_from_a}).value() == "via b!");
  CHECK(pair.b->mesh().link_counters(c->id()).connections == 1);
  // The null handle and a handle of the receiver itself.
  const auto own = pair.remote(pair.b->system().spawn(echo), "own");
  CHECK(pair.ask<std::string>(target, HandleBox{"to b", own}).value() == "to b!");
  CHECK(pair.ask<std::string>(target, HandleBox{"to a", pair.a->system().spawn(echo)}).value() ==
        "to a!");
  c->mesh().unpublish("origin");
  caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
  c->stop();
}

TEST_CASE("the loss of a link fails what is pending and kills the proxies", "[mesh]") {
  Pair pair;
  const auto silent = pair.b->system().spawn([](caf::event_based_actor* self) {
    return caf::behavior{[=](const std::string&) -> caf::response_promise {
      // Kept for ever.
      static std::vector<caf::response_promise> promises;
      promises.push_back(self->make_response_promise());
      return promises.back();
    }};
  });
  const auto target = pair.remote(silent);
  pair.self->monitor(target);
  auto handle = pair.self->request(target, patience, std::string{"?"});
  CHECK(eventually([&] { return pair.b->mesh().counters().messages_received.load() == 1; }));
  pair.a->mesh().disconnect(pair.b->id(), {ec::closed, "test ends the link"});
  caf::error err;
  handle.receive([](const caf::message&) {}, [&](const caf::error& e) { err = e; });
  CHECK(err == ec::may_have_executed);
  caf::error reason;
  pair.self->receive([&](caf::down_msg& msg) { reason = msg.reason; },
                     caf::after(patience) >> [] {});
  CHECK(reason == ec::node_unreachable);
  CHECK(pair.ask_error(target, std::string{"again"}) == ec::node_unreachable);
  caf::anon_send_exit(silent, caf::exit_reason::kill);
  // The nodes can be linked anew.
  REQUIRE(eventually([&] { return pair.a->mesh().connect_wait(pair.b->address()).has_value(); }));
  const auto fresh = pair.remote(pair.b->system().spawn(echo));
  CHECK(pair.ask<std::uint64_t>(fresh, std::uint64_t{3}).value() == 3);
}

TEST_CASE("nothing is left of short-lived actors on either side", "[mesh]") {
  Pair pair;
  const auto spawner = pair.b->system().spawn([](caf::event_based_actor* self) {
    return caf::behavior{[=](std::uint64_t) -> caf::actor { return self->spawn(echo); }};
  });
  {
    const auto target = pair.remote(spawner);
    for (std::uint64_t i = 0; i < 3000; ++i) {
      // Some are ended by us, some are just dropped: unreachable actors end by themselves.
      caf::actor made;
      pair.self->request(target, patience, i)
          .receive([&](caf::actor& actor) { made = std::move(actor); },
                   [&](const caf::error& err) { FAIL(describe(err)); });
      REQUIRE(made);
      if (i % 3 == 0) {
        REQUIRE(pair.ask<std::string>(made, caf::ok_atom_v).has_value());
      } else if (i % 3 == 1) {
        // A requester of its own, which is exported to b and ends.
        caf::scoped_actor other{pair.a->system()};
        other->request(made, patience, i).receive([](std::uint64_t) {}, [](const caf::error&) {});
      }
    }
    caf::anon_send_exit(target, caf::exit_reason::user_shutdown);
  }
  CHECK(eventually([&] {
    const auto sizes = pair.b->mesh().table_sizes(pair.a->id());
    return pair.tables_empty() && sizes.proxies <= 1;
  }));
}

TEST_CASE("control actors are reached past a full user lane", "[mesh]") {
  Pair pair{start_node("b")};
  const auto gate = std::make_shared<std::atomic<bool>>(false);
  const auto slow = pair.b->system().spawn<caf::detached>([gate](caf::event_based_actor*) {
    return caf::behavior{[gate](const net::Bytes&) { eventually([&] { return gate->load(); }); }};
  });
  const auto target = pair.remote(slow);
  const auto quick = pair.remote(pair.b->system().spawn(echo), "control", net::Lane::control);
  const auto chunk = net::Bytes::copy_of(std::vector<std::byte>(1'000'000));
  std::size_t sent = 0;
  while (pair.a->mesh().writable(target) && sent < 500) {
    pair.self->send(target, chunk);
    ++sent;
  }
  // 64 MB of window there and 64 MB of queue here, give or take what is in the sockets.
  CHECK(sent < 200);
  CHECK(eventually([&] { return !pair.a->mesh().writable(target); }));
  CHECK(pair.ask_error(target, chunk) == ec::would_block);
  CHECK(pair.ask<std::uint64_t>(quick, std::uint64_t{9}).value() == 9);
  const auto writable = std::make_shared<std::atomic<bool>>(false);
  pair.a->mesh().when_writable(target, [writable] { writable->store(true); });
  CHECK_FALSE(writable->load());
  gate->store(true);
  CHECK(eventually([&] { return writable->load(); }));
  pair.self->send_exit(target, caf::exit_reason::user_shutdown);
}
