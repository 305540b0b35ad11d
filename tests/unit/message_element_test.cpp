// Received messages as mailbox elements: credit, actors that handle them, malformed bodies.
#include "tests/unit/message_codec_support.hpp"

namespace {
caf::mailbox_element_ptr element_of(const caf::message& content,
                                    const std::shared_ptr<CountingAccount>& account,
                                    caf::message_id mid = caf::make_message_id()) {
  const auto body = encoded(content);
  auto element = decode_element(types(), body, nullptr, nullptr, nullptr, mid, {},
                                CreditToken{account, 2, 10});
  if (!element) {
    FAIL(to_string(element.error()));
  }
  return std::move(*element);
}
}  // namespace

TEST_CASE("a mailbox element holds its credit until it is destroyed", "[message_codec][credit]") {
  const auto account = std::make_shared<CountingAccount>();
  for (const auto& content :
       {caf::make_message(CafStyle{1, "x"}), caf::make_message(1, 2), caf::message{}}) {
    account->released = 0;
    auto element = element_of(content, account);
    CHECK(element->content().size() == content.size());
    const auto& view = *element;
    CHECK(view.content().size() == content.size());
    CHECK(view.copy_content_to_message().size() == content.size());
    CHECK(account->released == 0);
    CHECK(element->move_content_to_message().size() == content.size());
    element.reset();
    CHECK(account->released == 10);
    CHECK(account->last_lane == 2);
  }
  account->released = 0;
  auto failed = decode_element(types(), std::span<const std::byte>{}, nullptr, nullptr, nullptr,
                               caf::make_message_id(), {}, CreditToken{account, 0, 3});
  REQUIRE_FALSE(failed);
  CHECK(account->released == 3);
}

TEST_CASE("actors handle received elements as ordinary messages", "[message_codec][credit]") {
  System host;
  const auto account = std::make_shared<CountingAccount>();
  std::promise<std::vector<int>> done;
  std::atomic<std::uint64_t> credit_in_handler{1};
  // Skips CafStyle until an int has come: the skipped element keeps its credit.
  auto actor = host.system->spawn([&](caf::event_based_actor* self) -> caf::behavior {
    self->set_default_handler(caf::skip);
    auto seen = std::make_shared<std::vector<int>>();
    return {[&, self, seen](int x) {
      seen->push_back(x);
      credit_in_handler = account->released.load();
      self->become([&, self, seen](const CafStyle& style) {
        seen->push_back(style.a);
        done.set_value(*seen);
        self->quit();
      });
    }};
  });
  actor->enqueue(element_of(caf::make_message(CafStyle{7, "late"}), account), nullptr);
  actor->enqueue(element_of(caf::make_message(1), account), nullptr);
  auto result = done.get_future();
  REQUIRE(result.wait_for(std::chrono::seconds{20}) == std::future_status::ready);
  CHECK(result.get() == std::vector<int>{1, 7});
  CHECK(credit_in_handler == 0);
  // An actor counts as ended before the element it handled last is destroyed.
  CHECK(eventually([&] { return account->released == 20; }));
  // An actor that has ended drops what it is sent.
  actor->enqueue(element_of(caf::make_message(2), account), nullptr);
  CHECK(eventually([&] { return account->released == 30; }));
}

TEST_CASE("an empty message answers a void request", "[message_codec]") {
  System host;
  auto body = encoded(caf::message{});
  auto server = host.system->spawn([&](caf::event_based_actor* self) -> caf::behavior {
    return {[&, self](int) {
      auto* request = self->current_mailbox_element();
      auto response = decode_element(types(), body, nullptr, nullptr, self->ctrl(),
                                     request->mid.response_id(), {}, {});
      caf::strong_actor_ptr client = request->sender;
      client->enqueue(std::move(*response), nullptr);
      self->make_response_promise();
    }};
  });
  caf::scoped_actor self{*host.system};
  bool answered = false;
  self->request(server, std::chrono::seconds{20}, 1)
      .receive([&] { answered = true; }, [&](const caf::error& err) { FAIL(describe(err)); });
  CHECK(answered);
  self->send_exit(server, caf::exit_reason::user_shutdown);
}

TEST_CASE("truncated and flipped messages never crash", "[message_codec][malformed]") {
  System host;
  FakeHandles handles;
  auto actor =
      host.system->spawn([](caf::event_based_actor*) -> caf::behavior { return {[](int) {}}; });
  Team team;
  team.leader = actor;
  team.members = {actor_cast<caf::strong_actor_ptr>(actor)};
  team.last_words = caf::make_message(1, std::string{"x"}, std::vector<double>{1, 2});
  team.reason = make_caf_error(ec::timeout, "late");
  Rollout rollout;
  rollout.rewards = {1, 2, 3};
  rollout.note = "n";
  rollout.label.set_value("v");
  google::protobuf::ListValue proto;
  proto.add_values()->set_string_value("value");
  const std::vector<caf::message> contents = {
      caf::make_message(team),
      caf::make_message(rollout, CafStyle{1, "b"}),
      caf::make_message(proto),
      caf::make_message(std::vector<std::string>{"a", "b"},
                        std::map<std::string, std::string>{{"a", "b"}}),
      caf::make_message(caf::down_msg{actor.address(), caf::sec::runtime_error}),
      caf::message{}};
  std::size_t accepted = 0;
  const auto try_both = [&](const std::vector<std::byte>& body) {
    accepted += decode_message(types(), body, nullptr, &handles).has_value() ? 1 : 0;
    accepted +=
        decode_element(types(), body, nullptr, &handles, nullptr, caf::make_message_id(), {}, {})
                .has_value()
            ? 1
            : 0;
  };
  for (const auto& content : contents) {
    auto body = encoded(content, &handles);
    for (std::size_t size = 0; size < body.size(); ++size) {
      accepted = 0;
      // A vector of exactly this size, so that a sanitizer sees any read beyond it.
      try_both({body.begin(), body.begin() + static_cast<std::ptrdiff_t>(size)});
      CHECK(accepted == 0);
    }
    for (std::size_t bit = 0; bit < body.size() * 8; ++bit) {
      const auto mask = static_cast<std::byte>(1U << (bit % 8));
      body[bit / 8] ^= mask;
      try_both(body);
      body[bit / 8] ^= mask;
    }
    body.push_back(std::byte{0});
    auto longer = decode_message(types(), body, nullptr, &handles);
    REQUIRE_FALSE(longer);
    CHECK(longer.error() == ec::malformed);
  }
  caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
}
