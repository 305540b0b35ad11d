// CAF messages through the codec: registry, every kind of element, handles, errors, credit,
// malformed bodies.
#include "tests/unit/message_codec_support.hpp"

TEST_CASE("registry: names, tags and conflicts", "[registry]") {
  TypeRegistry registry;
  REQUIRE(registry.add<CafStyle>("a.name"));
  CHECK(registry.add<CafStyle>("a.name"));
  auto second_name = registry.add<CafStyle>("another.name");
  REQUIRE_FALSE(second_name);
  CHECK(second_name.error() == ec::conflict);
  auto second_type = registry.add<Checked>("a.name");
  REQUIRE_FALSE(second_type);
  CHECK(second_type.error() == ec::conflict);
  CHECK_THAT(second_type.error().text(), Catch::Contains("sample::CafStyle"));
  auto builtin = registry.add<std::string>("my.string");
  REQUIRE_FALSE(builtin);
  CHECK(builtin.error() == ec::conflict);
  CHECK(registry.add<Checked>("").error() == ec::invalid_argument);

  // Two names with the same XXH32.
  REQUIRE(type_tag("t22690") == type_tag("t823309"));
  REQUIRE(registry.add<Rollout>("t22690"));
  auto collision = registry.add<Team>("t823309");
  REQUIRE_FALSE(collision);
  CHECK(collision.error() == ec::conflict);
  CHECK_THAT(collision.error().text(), Catch::Contains("same hash"));

  const TypeInfo* info = registry.find_name("a.name");
  REQUIRE(info != nullptr);
  CHECK(registry.find(info->tag) == info);
  CHECK(registry.find(typeid(CafStyle)) == info);
  CHECK(registry.find(caf::make_rtti_pair<CafStyle>()) == info);
  CHECK(registry.find(caf::make_rtti_pair<long long>())->name == "i64");
  CHECK(registry.find_name("nothing") == nullptr);
  CHECK(registry.find(typeid(Stranger)) == nullptr);

  registry.freeze();
  CHECK(registry.add<Stranger>("late").error() == ec::closed);
}

TEST_CASE("the tag of a name never changes", "[registry]") {
  CHECK(type_tag("") == 0x02CC5D05U);
  CHECK(type_tag("abc") == 0x32D153FFU);
}

TEST_CASE("built-in types round-trip as message elements", "[message_codec]") {
  check_equal(true, std::int8_t{-1}, std::uint16_t{65535}, -5, 5U, std::int64_t{-1} << 40,
              ~std::uint64_t{0}, 1.5F, -2.5, std::string{"text"}, std::string{});
  check_equal(std::vector<float>{1, 2, 3}, std::vector<bool>{true, false},
              std::vector<std::string>{"a", ""}, std::vector<char>{'x'},
              std::vector<std::byte>{std::byte{1}}, std::map<std::string, std::string>{{"k", "v"}},
              Bytes{}, NodeId{3, 4}, std::chrono::nanoseconds{7}, std::chrono::milliseconds{8},
              std::chrono::duration<double>{0.5}, caf::timestamp{std::chrono::nanoseconds{9}},
              caf::atom("hello"));
  same(caf::unit);
  CHECK(std::signbit(same(-0.0)));
  CHECK(std::isnan(same(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("messages of none, one and many elements", "[message_codec]") {
  CHECK(round_trip(caf::message{}).empty());
  CHECK(encoded(caf::message{}).size() == 4);
  const auto many = caf::make_message(caf::add_atom::value, 1, std::string{"two"}, 3.0,
                                      std::vector<double>{4, 5}, CafStyle{6, "seven"});
  const auto back = round_trip(many);
  CHECK(back.type_token() == many.type_token());
  CHECK(back.match_elements<caf::add_atom, int, std::string, double, std::vector<double>,
                            CafStyle>());
  CHECK(back.get_as<std::vector<double>>(4) == std::vector<double>{4, 5});
  CHECK(back.get_as<CafStyle>(5).b == "seven");
  // A copy-on-write of a received message must be a full copy.
  auto one = round_trip(caf::make_message(CafStyle{1, "one"}));
  auto shared = one;
  shared.get_mutable_as<CafStyle>(0).b = "changed";
  CHECK(one.get_as<CafStyle>(0).b == "one");
}

TEST_CASE("structs and Protobuf messages as elements", "[message_codec]") {
  Rollout x;
  x.version = 3;
  x.rewards = {1, -0.0F};
  x.note = "note";
  x.node = NodeId{5, 6};
  x.blob = Bytes::copy_of(std::as_bytes(std::span{"blob", 4}));
  x.label.set_value("label");
  const Rollout y = same(x);
  CHECK(y.version == 3);
  CHECK(std::signbit(y.rewards.at(1)));
  CHECK(y.note == x.note);
  CHECK(y.node == x.node);
  CHECK(y.blob == x.blob);
  CHECK(y.label.value() == "label");

  // No type with a map field: their layout differs under ThreadSanitizer from Debian's library.
  google::protobuf::ListValue proto;
  proto.add_values()->set_bool_value(true);
  CHECK(same(proto).values(0).bool_value());

  Declared declared;
  declared.pause = std::chrono::milliseconds{2};
  declared.parts.resize(2);
  declared.parts[1].nested["key"] = std::vector<Bytes>{x.blob};
  CHECK(same(declared).parts.at(1).nested.at("key")->at(0) == x.blob);

  CHECK(same(Checked{100}).percent == 100);
  auto refused =
      decode_message(types(), encoded(caf::make_message(Checked{101})), nullptr, nullptr);
  REQUIRE_FALSE(refused);
  CHECK(refused.error() == ec::malformed);
}

TEST_CASE("JSON of Protobuf types", "[message_codec][json]") {
  const TypeInfo* info = types().find_name("test.list");
  REQUIRE(info != nullptr);
  REQUIRE(info->from_json);
  auto message = info->from_json(R"([1.5, [true], "x"])");
  REQUIRE(message);
  auto json = info->to_json(message->get(0));
  REQUIRE(json);
  CHECK_THAT(*json, Catch::Contains("1.5"));
  CHECK(info->from_json("{broken").error() == ec::malformed);
  CHECK_FALSE(types().find_name("test.rollout")->to_json);
}

TEST_CASE("version skew between two registries", "[message_codec][version]") {
  TypeRegistry old_node;
  TypeRegistry new_node;
  REQUIRE(old_node.add<skew_old::Step>("test.step"));
  REQUIRE(new_node.add<skew_new::Step>("test.step"));
  EncodedBody body;
  REQUIRE_FALSE(
      encode_message(new_node, caf::make_message(skew_new::Step{4, {1, 2, 3}}, 5), nullptr, body));
  auto at_old = decode_message(old_node, body.flatten(), nullptr, nullptr);
  REQUIRE(at_old);
  CHECK(at_old->get_as<skew_old::Step>(0).index == 4);
  CHECK(at_old->get_as<int>(1) == 5);

  body.clear();
  REQUIRE_FALSE(encode_message(old_node, caf::make_message(skew_old::Step{6}, 7), nullptr, body));
  auto at_new = decode_message(new_node, body.flatten(), nullptr, nullptr);
  REQUIRE(at_new);
  CHECK(at_new->get_as<skew_new::Step>(0).index == 6);
  CHECK(at_new->get_as<skew_new::Step>(0).observation == std::vector<float>{9, 9});
  CHECK(at_new->get_as<int>(1) == 7);
}

TEST_CASE("unregistered types are told on both sides", "[message_codec]") {
  EncodedBody body;
  const error err = encode_message(types(), caf::make_message(1, Stranger{}), nullptr, body);
  CHECK(err == ec::unknown_type);
  CHECK_THAT(err.text(), Catch::Contains("sample::Stranger") && Catch::Contains("add<"));
  CHECK(body.empty());
  CHECK(encode_message(types(), caf::make_message(caf::duration{}), nullptr, body) ==
        ec::unknown_type);

  TypeRegistry other;
  REQUIRE(other.add<Stranger>("test.stranger"));
  REQUIRE_FALSE(encode_message(other, caf::make_message(Stranger{}), nullptr, body));
  auto failed = decode_message(types(), body.flatten(), nullptr, nullptr);
  REQUIRE_FALSE(failed);
  CHECK(failed.error() == ec::unknown_type);
  CHECK_THAT(failed.error().text(), Catch::Contains("0x"));
}

TEST_CASE("what inspect throws becomes an error", "[message_codec]") {
  EncodedBody body;
  const error err = encode_message(types(), caf::make_message(Thrower{0}), nullptr, body);
  CHECK(err == ec::exception);
  CHECK_THAT(err.text(), Catch::Contains("inspect threw"));
  CHECK(body.empty());
  auto failed = decode_message(types(), encoded(caf::make_message(Thrower{1})), nullptr, nullptr);
  REQUIRE_FALSE(failed);
  CHECK(failed.error() == ec::exception);
}

TEST_CASE("handles travel at any depth", "[message_codec][handles]") {
  System host;
  FakeHandles handles;
  auto leader = host.system->spawn(
      [](caf::event_based_actor*) -> caf::behavior { return {[](int x) { return x + 1; }}; });
  const auto ptr = caf::actor_cast<caf::strong_actor_ptr>(leader);
  CHECK(same(leader, &handles) == leader);
  CHECK(same(ptr, &handles) == ptr);
  CHECK(same(leader.address(), &handles) == leader.address());
  CHECK(same(caf::actor{}, &handles) == caf::actor{});
  CHECK_FALSE(same(caf::strong_actor_ptr{}));
  CHECK_FALSE(same(caf::actor_addr{}));

  Team team;
  team.name = "team";
  team.leader = leader;
  team.members = {ptr, nullptr, ptr};
  team.watched = leader.address();
  team.last_words = caf::make_message(leader, std::string{"bye"}, caf::make_message(1));
  team.reason = make_caf_error(ec::timeout, "too late");
  const Team back = same(team, &handles);
  CHECK(back.leader == leader);
  CHECK(back.members == team.members);
  CHECK(back.watched == leader.address());
  CHECK(back.last_words.get_as<caf::actor>(0) == leader);
  CHECK(back.last_words.get_as<caf::message>(2).get_as<int>(0) == 1);
  CHECK(back.reason == ec::timeout);

  const auto exit = same(caf::exit_msg{leader.address(), caf::exit_reason::kill}, &handles);
  CHECK(exit.source == leader.address());
  CHECK(exit.reason == caf::exit_reason::kill);
  const auto down =
      same(caf::down_msg{leader.address(), make_error(ec::node_unreachable)}, &handles);
  CHECK(down.source == leader.address());
  CHECK(down.reason == ec::node_unreachable);

  EncodedBody body;
  CHECK(encode_message(types(), caf::make_message(leader), nullptr, body) == ec::invalid_argument);
  const auto bytes = encoded(caf::make_message(leader), &handles);
  FakeHandles ignorant;
  auto failed = decode_message(types(), bytes, nullptr, &ignorant);
  REQUIRE_FALSE(failed);
  CHECK(failed.error() == ec::node_unreachable);
  CHECK(decode_message(types(), bytes, nullptr, nullptr).error() == ec::malformed);
  caf::anon_send_exit(leader, caf::exit_reason::user_shutdown);
}

TEST_CASE("errors keep code and category", "[message_codec][error]") {
  // CAF puts an error into the message for each of these enums.
  CHECK(round_trip(caf::make_message(ec::timeout)).get_as<caf::error>(0) == ec::timeout);
  CHECK(round_trip(caf::make_message(caf::sec::no_context)).get_as<caf::error>(0) ==
        caf::sec::no_context);
  caf::error err = caf::sec::request_receiver_down;
  CHECK(same(err) == caf::sec::request_receiver_down);
  CHECK(same(caf::error{}) == caf::none);
  err = make_caf_error(ec::node_unreachable, "link is down");
  const caf::error back = same(err);
  CHECK(back == ec::node_unreachable);
  CHECK(back != ec::timeout);
  CHECK(back == make_caf_error(ec::node_unreachable, "another text"));
  CHECK(to_error(back).text() == "link is down");
  CHECK(to_error(back).code() == ec::node_unreachable);
  CHECK(describe(back) == "node_unreachable: link is down");
  CHECK(to_error(same(back)).text() == "link is down");
  const auto rendered = same(caf::make_error(caf::sec::runtime_error, "thrown", 42));
  CHECK(rendered == caf::sec::runtime_error);
  CHECK_THAT(context_text(rendered), Catch::Contains("thrown") && Catch::Contains("42"));
  CHECK(same(make_caf_error(ec::exception, std::string(100000, 'x'))) == ec::exception);

  CHECK_FALSE(to_error(caf::error{}));
  CHECK(make_error(ec::none) == caf::none);
  CHECK(make_caf_error(error{}) == caf::none);
  CHECK(to_error(caf::make_error(caf::sec::request_timeout)) == ec::timeout);
  CHECK(to_error(caf::make_error(caf::sec::request_receiver_down)) == ec::actor_down);
  CHECK(to_error(caf::make_error(caf::exit_reason::kill)) == ec::actor_down);
  CHECK(to_error(caf::make_error(caf::pec::unexpected_eof)) == ec::exception);
  CHECK(describe(caf::error{}) == "none");

  System host;
  CHECK(host.system->render(back) == "node_unreachable: link is down");
}

TEST_CASE("large arrays in messages are referenced, not copied", "[message_codec]") {
  const auto message = caf::make_message(std::vector<float>(1 << 20, 0.5F), std::string{"end"});
  EncodedBody body;
  REQUIRE_FALSE(encode_message(types(), message, nullptr, body));
  REQUIRE(body.externals.size() == 1);
  CHECK(body.externals[0].bytes.data() ==
        reinterpret_cast<const std::byte*>(message.get_as<std::vector<float>>(0).data()));
  CHECK(body.externals[0].position % 8 == 0);
  auto back = decode_message(types(), body.flatten(), nullptr, nullptr);
  REQUIRE(back);
  CHECK(back->get_as<std::vector<float>>(0) == message.get_as<std::vector<float>>(0));
}
