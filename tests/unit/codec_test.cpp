// The codec without CAF: bit-exact round trips, version skew, malformed input.
#include <catch2/catch.hpp>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/wrappers.pb.h>

#include "net/codec.hpp"
#include "net/philox.hpp"

namespace {

using namespace troupe;
using namespace troupe::net;

enum class Colour : std::uint8_t { red, green, blue };
enum class Wide : std::int64_t { low = std::numeric_limits<std::int64_t>::min() };

struct Inner {
  std::int32_t number = -1;
  std::string name = "unset";
  friend bool operator==(const Inner&, const Inner&) = default;
};
template <class Inspector>
auto inspect(Inspector& f, Inner& x) {
  return f(x.number, x.name);
}

struct Everything {
  bool flag = false;
  char letter = 0;
  std::int8_t i8 = 0;
  std::uint16_t u16 = 0;
  std::int32_t i32 = 0;
  std::uint64_t u64 = 0;
  float f32 = 0;
  double f64 = 0;
  Colour colour = Colour::red;
  Wide wide{};
  std::string text;
  std::vector<double> doubles;
  std::vector<bool> bits;
  std::vector<std::string> words;
  std::vector<Inner> inners;
  std::array<float, 3> triple{};
  std::array<Inner, 2> pair_of_inners;
  std::pair<int, std::string> pair;
  std::tuple<int, Inner, bool> tuple;
  std::optional<Inner> some;
  std::optional<int> nothing;
  std::map<std::string, std::vector<int>> ordered;
  std::unordered_map<int, Inner> unordered;
  std::set<std::string> set;
  std::unordered_set<std::uint64_t> hashed;
  std::variant<std::monostate, int, Inner> variant;
  std::chrono::nanoseconds nanos{};
  std::chrono::duration<double> seconds{};
  std::chrono::system_clock::time_point when;
  NodeId node;
  Bytes bytes;
  Inner inner;
  friend bool operator==(const Everything&, const Everything&) = default;
};
template <class Inspector>
auto inspect(Inspector& f, Everything& x) {
  return f(x.flag, x.letter, x.i8, x.u16, x.i32, x.u64, x.f32, x.f64, x.colour, x.wide, x.text,
           x.doubles, x.bits, x.words, x.inners, x.triple, x.pair_of_inners, x.pair, x.tuple,
           x.some, x.nothing, x.ordered, x.unordered, x.set, x.hashed, x.variant, x.nanos,
           x.seconds, x.when, x.node, x.bytes, x.inner);
}

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span{text.data(), text.size()});
}

Everything full() {
  Everything x;
  x.flag = true;
  x.letter = 'q';
  x.i8 = -128;
  x.u16 = 65535;
  x.i32 = std::numeric_limits<std::int32_t>::min();
  x.u64 = std::numeric_limits<std::uint64_t>::max();
  x.f32 = -0.0F;
  x.f64 = 5e-324;
  x.colour = Colour::blue;
  x.wide = Wide::low;
  x.text = std::string{"nul \0 inside", 12};
  x.doubles = {1.5, -2.5};
  x.bits = {true, false, true};
  x.words = {"", "one", std::string(300, 'x')};
  x.inners = {{1, "a"}, {2, "b"}};
  x.triple = {1, 2, 3};
  x.pair_of_inners = {Inner{7, "seven"}, Inner{8, "eight"}};
  x.pair = {42, "pair"};
  x.tuple = {1, Inner{3, "t"}, true};
  x.some = Inner{9, "some"};
  x.ordered = {{"a", {1, 2}}, {"b", {}}};
  x.unordered = {{5, {5, "five"}}, {6, {6, "six"}}};
  x.set = {"x", "y"};
  x.hashed = {1, 2, 3};
  x.variant = Inner{11, "variant"};
  x.nanos = std::chrono::nanoseconds{-5};
  x.seconds = std::chrono::duration<double>{0.25};
  x.when = std::chrono::system_clock::time_point{std::chrono::system_clock::duration{123456789}};
  x.node = NodeId{0x0123456789abcdef, 0xfedcba9876543210};
  x.bytes = Bytes::copy_of(as_bytes("some bytes"));
  x.inner = {100, "last"};
  return x;
}

template <class T>
std::vector<std::byte> encoded(const T& x) {
  EncodedBody body;
  REQUIRE_FALSE(encode_value(x, body));
  REQUIRE(body.flatten().size() == body.size());
  return body.flatten();
}

template <class T>
T round_trip(const T& x) {
  const auto body = encoded(x);
  auto back = decode_value<T>(body);
  REQUIRE(back);
  return std::move(*back);
}

/// Decodes at each offset from an aligned address.
template <class T>
void check_bits_at_any_alignment(const std::vector<T>& xs) {
  const auto body = encoded(xs);
  std::vector<std::byte> buffer(body.size() + 8);
  for (std::size_t offset = 0; offset < 8; ++offset) {
    std::copy(body.begin(), body.end(), buffer.begin() + static_cast<std::ptrdiff_t>(offset));
    auto back = decode_value<std::vector<T>>(std::span{buffer}.subspan(offset, body.size()));
    REQUIRE(back);
    REQUIRE(back->size() == xs.size());
    REQUIRE((xs.empty() || std::memcmp(back->data(), xs.data(), xs.size() * sizeof(T)) == 0));
  }
}

template <class Float, class Int>
std::vector<Float> odd_numbers(Int quiet_payload, Int signalling) {
  using Limits = std::numeric_limits<Float>;
  return {Limits::infinity(),
          -Limits::infinity(),
          Limits::quiet_NaN(),
          -Limits::quiet_NaN(),
          std::bit_cast<Float>(quiet_payload),
          std::bit_cast<Float>(signalling),
          Float{0},
          -Float{0},
          Limits::denorm_min(),
          -Limits::denorm_min(),
          Limits::min() / 2,
          Limits::max(),
          Limits::lowest(),
          Limits::epsilon(),
          Float{1}};
}

}  // namespace

TEST_CASE("every supported field type round-trips", "[codec]") {
  const Everything x = full();
  CHECK(round_trip(x) == x);
  CHECK(round_trip(Everything{}) == Everything{});
}

TEST_CASE("floating point keeps every bit at any alignment", "[codec]") {
  check_bits_at_any_alignment(odd_numbers<float, std::uint32_t>(0x7FC12345U, 0x7F812345U));
  check_bits_at_any_alignment(
      odd_numbers<double, std::uint64_t>(0x7FF8123456789ABCULL, 0xFFF0123456789ABCULL));
  check_bits_at_any_alignment(std::vector<double>{});
  check_bits_at_any_alignment(std::vector<std::uint8_t>{1, 2, 3});
  check_bits_at_any_alignment(std::vector<std::int16_t>{-1, 2, -3});
  check_bits_at_any_alignment(std::vector<std::uint64_t>{~0ULL, 0, 1});
  check_bits_at_any_alignment(std::vector<Colour>{Colour::blue, Colour{200}});
  for (const float x : odd_numbers<float, std::uint32_t>(0x7FC12345U, 0x7FC00001U)) {
    CHECK(std::bit_cast<std::uint32_t>(round_trip(x)) == std::bit_cast<std::uint32_t>(x));
  }
  for (const double x : odd_numbers<double, std::uint64_t>(0x7FF8123456789ABCULL, 1)) {
    CHECK(std::bit_cast<std::uint64_t>(round_trip(x)) == std::bit_cast<std::uint64_t>(x));
  }
}

TEST_CASE("100 MB of numbers and a 64 MB string round-trip without a copy on the sender",
          "[codec]") {
  std::vector<float> big(std::size_t{25} << 20U);
  PhiloxStream random{7};
  for (float& x : big) {
    x = std::bit_cast<float>(random());
  }
  EncodedBody body;
  REQUIRE_FALSE(encode_value(big, body));
  REQUIRE(body.externals.size() == 1);
  CHECK(body.externals[0].bytes.data() == reinterpret_cast<const std::byte*>(big.data()));
  CHECK(body.inline_bytes.size() <= 16);
  auto back = decode_value<std::vector<float>>(body.flatten());
  REQUIRE(back);
  REQUIRE(back->size() == big.size());
  CHECK(std::memcmp(back->data(), big.data(), big.size() * sizeof(float)) == 0);

  std::string text(std::size_t{64} << 20U, 'a');
  text[12345] = '\0';
  text.back() = 'z';
  CHECK(round_trip(text) == text);
}

TEST_CASE("externals come in order between the inline bytes", "[codec]") {
  struct Both {
    std::vector<std::uint8_t> head = std::vector<std::uint8_t>(20000, 1);
    std::string middle = "middle";
    std::vector<std::string> tail = {std::string(30000, 'x'), "small", std::string(16384, 'y')};
    std::array<double, 3000> fixed{};
  };
  using Fields = std::tuple<std::vector<std::uint8_t>, std::string, std::vector<std::string>,
                            std::array<double, 3000>>;
  const Both both;
  const auto x = std::make_unique<Fields>(both.head, both.middle, both.tail, both.fixed);
  std::get<3>(*x).fill(-0.0);
  EncodedBody body;
  REQUIRE_FALSE(encode_value(*x, body));
  CHECK(body.externals.size() == 4);
  auto back = decode_value<Fields>(body.flatten());
  REQUIRE(back);
  CHECK(*back == *x);

  EncodedBody copied;
  REQUIRE_FALSE(encode_value(*x, copied, {}, false));
  CHECK(copied.externals.empty());
  CHECK(copied.inline_bytes == body.flatten());

  body.clear();
  CHECK(body.empty());
  CHECK(body.inline_bytes.capacity() > 0);
}

namespace {
/// Its `inspect` shows a local, which is gone once it returns, and one value behind a pointer.
struct Indirect {
  std::string stored;
  std::shared_ptr<std::string> elsewhere = std::make_shared<std::string>();
};
template <class Inspector>
auto inspect(Inspector& f, Indirect& x) {
  std::string local = x.stored + "!";
  const bool ok = f(local, *x.elsewhere);
  if constexpr (Inspector::is_loading) {
    x.stored = local.substr(0, local.empty() ? 0 : local.size() - 1);
  }
  return ok;
}
}  // namespace

TEST_CASE("a large local inside inspect is copied, never referenced", "[codec]") {
  Indirect x;
  x.stored = std::string(50000, 's');
  *x.elsewhere = std::string(40000, 'e');
  EncodedBody body;
  REQUIRE_FALSE(encode_value(std::vector<Indirect>{x}, body));
  CHECK(body.externals.empty());
  auto back = decode_value<std::vector<Indirect>>(body.inline_bytes);
  REQUIRE(back);
  CHECK(back->at(0).stored == x.stored);
  CHECK(*back->at(0).elsewhere == *x.elsewhere);
}

TEST_CASE("Bytes are views into the body when it has an owner", "[codec]") {
  const Bytes data = Bytes::copy_of(as_bytes(std::string(1000, 'b')));
  const auto body = std::make_shared<std::vector<std::byte>>(encoded(data));
  auto view = decode_value<Bytes>(*body, body);
  REQUIRE(view);
  CHECK(*view == data);
  CHECK(view->data() >= body->data());
  CHECK(view->data() < body->data() + body->size());
  CHECK(body.use_count() == 2);
  auto copy = decode_value<Bytes>(*body);
  REQUIRE(copy);
  CHECK(*copy == data);
  CHECK((copy->data() < body->data() || copy->data() >= body->data() + body->size()));
  CHECK(round_trip(Bytes{}).empty());
}

TEST_CASE("Protobuf messages travel as their own bytes", "[codec][protobuf]") {
  // No type with a map field: their layout differs under ThreadSanitizer from Debian's library.
  google::protobuf::ListValue x;
  x.add_values()->set_number_value(3.14);
  x.add_values()->mutable_list_value()->add_values()->set_string_value("word");
  const auto body = encoded(x);
  CHECK(body.size() == x.ByteSizeLong());
  CHECK(round_trip(x).SerializeAsString() == x.SerializeAsString());
  CHECK(round_trip(x).values(0).number_value() == 3.14);

  google::protobuf::BytesValue blob;
  blob.set_value(std::string(100000, '\xff'));
  CHECK(round_trip(std::vector{blob, blob}).at(1).value() == blob.value());
  CHECK(round_trip(google::protobuf::ListValue{}).values_size() == 0);
  const std::string garbage = "\xff\xff\xff\xff";
  auto failed = decode_value<google::protobuf::ListValue>(as_bytes(garbage));
  REQUIRE_FALSE(failed);
  CHECK(failed.error() == ec::malformed);
}

// Version skew: the same type as an older and a newer build know it.
namespace {
struct OldPart {
  int a = 1;
};
template <class Inspector>
auto inspect(Inspector& f, OldPart& x) {
  return f(x.a);
}
struct NewPart {
  int a = 1;
  std::string b = "default b";
  std::vector<double> c = {0.5};
};
template <class Inspector>
auto inspect(Inspector& f, NewPart& x) {
  return f(x.a, x.b, x.c);
}
struct OldWhole {
  std::vector<OldPart> parts;
  std::string name;
};
template <class Inspector>
auto inspect(Inspector& f, OldWhole& x) {
  return f(x.parts, x.name);
}
struct NewWhole {
  std::vector<NewPart> parts;
  std::string name;
  std::optional<NewPart> extra = NewPart{};
};
template <class Inspector>
auto inspect(Inspector& f, NewWhole& x) {
  return f(x.parts, x.name, x.extra);
}
}  // namespace

TEST_CASE("a receiver that knows fewer fields skips the rest", "[codec][version]") {
  NewWhole x;
  x.parts = {{5, "b5", {1, 2}}, {6, "b6", {}}};
  x.name = "new";
  auto old = decode_value<OldWhole>(encoded(x));
  REQUIRE(old);
  REQUIRE(old->parts.size() == 2);
  CHECK(old->parts[0].a == 5);
  CHECK(old->parts[1].a == 6);
  CHECK(old->name == "new");
}

TEST_CASE("a receiver that knows more fields keeps their defaults", "[codec][version]") {
  OldWhole x;
  x.parts = {{5}, {6}};
  x.name = "old";
  auto fresh = decode_value<NewWhole>(encoded(x));
  REQUIRE(fresh);
  REQUIRE(fresh->parts.size() == 2);
  CHECK(fresh->parts[1].a == 6);
  CHECK(fresh->parts[1].b == "default b");
  CHECK(fresh->parts[1].c == std::vector<double>{0.5});
  CHECK(fresh->name == "old");
  REQUIRE(fresh->extra);
  CHECK(fresh->extra->b == "default b");
}

namespace {
struct Tree {
  std::vector<Tree> children;
};
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Tree& x) {
  return f(x.children);
}
Tree chain(int depth) {
  Tree tree;
  for (int i = 1; i < depth; ++i) {
    Tree parent;
    parent.children.push_back(std::move(tree));
    tree = std::move(parent);
  }
  return tree;
}
template <class T>
ec failure_of(std::vector<std::byte> body, DecodeLimits limits = {}) {
  auto result = decode_value<T>(body, nullptr, {}, limits);
  return result ? ec::none : result.error().code();
}
std::vector<std::byte> raw_bytes(std::initializer_list<int> values) {
  std::vector<std::byte> body;
  for (const int value : values) {
    body.push_back(static_cast<std::byte>(value));
  }
  return body;
}
}  // namespace

TEST_CASE("nesting is limited on both sides", "[codec][limits]") {
  const auto body = encoded(chain(64));
  CHECK(failure_of<Tree>(body) == ec::none);
  EncodedBody out;
  const error err = encode_value(chain(65), out);
  CHECK(err == ec::limit_exceeded);
  DecodeLimits shallow;
  shallow.max_depth = 63;
  CHECK(failure_of<Tree>(body, shallow) == ec::malformed);
}

TEST_CASE("announced lengths are checked before memory is taken", "[codec][limits]") {
  // 4 GB of floats, strings, entries, bytes in a body of a few bytes.
  const auto claim = raw_bytes({0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0});
  CHECK(failure_of<std::vector<float>>(claim) == ec::malformed);
  CHECK(failure_of<std::vector<std::string>>(claim) == ec::malformed);
  CHECK(failure_of<std::vector<Inner>>(claim) == ec::malformed);
  CHECK(failure_of<std::vector<bool>>(claim) == ec::malformed);
  CHECK(failure_of<std::string>(claim) == ec::malformed);
  CHECK(failure_of<Bytes>(claim) == ec::malformed);
  CHECK(failure_of<std::map<std::string, std::string>>(claim) == ec::malformed);
  CHECK(failure_of<std::unordered_set<std::uint8_t>>(claim) == ec::malformed);
  CHECK(failure_of<std::tuple<std::string, Inner>>(claim) == ec::malformed);
}

namespace {
struct Fat {
  std::array<double, 1000> numbers{};
};
template <class Inspector>
auto inspect(Inspector& f, Fat& x) {
  return f(x.numbers);
}
}  // namespace

TEST_CASE("a body that unfolds to far more memory than its size is refused", "[codec][limits]") {
  // A million structs without fields: 4 MB on the wire, 8 GB in memory.
  std::vector<std::byte> body(4 + 4 * 1000000);
  const std::uint32_t count = 1000000;
  std::memcpy(body.data(), &count, sizeof(count));
  CHECK(failure_of<std::vector<Fat>>(body) == ec::limit_exceeded);
}

TEST_CASE("what is not canonical is malformed", "[codec]") {
  CHECK(failure_of<bool>(raw_bytes({2})) == ec::malformed);
  CHECK(failure_of<std::optional<int>>(raw_bytes({2, 0, 0, 0, 0})) == ec::malformed);
  CHECK(failure_of<std::variant<int, bool>>(raw_bytes({2, 0})) == ec::malformed);
  CHECK(failure_of<int>(raw_bytes({1, 2, 3, 4, 5})) == ec::malformed);
  CHECK(failure_of<int>(raw_bytes({1, 2, 3})) == ec::malformed);
  CHECK(failure_of<int>({}) == ec::malformed);
  CHECK(failure_of<std::set<std::uint8_t>>(raw_bytes({2, 0, 0, 0, 7, 7})) == ec::malformed);
  CHECK(failure_of<std::set<std::uint8_t>>(raw_bytes({2, 0, 0, 0, 7, 8})) == ec::none);
  // Padding of the array is the bytes 4 to 7.
  CHECK(failure_of<std::vector<double>>(
            raw_bytes({1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})) == ec::malformed);
  auto failed = decode_value<std::string>(raw_bytes({5, 0, 0, 0, 1}));
  REQUIRE_FALSE(failed);
  CHECK_THAT(failed.error().text(), Catch::Contains("5 elements"));
  CHECK_THAT(failed.error().text(), Catch::Contains("byte 4"));
}

TEST_CASE("truncated and flipped bodies never crash", "[codec][malformed]") {
  auto body = encoded(full());
  for (std::size_t size = 0; size < body.size(); ++size) {
    // Exactly as large as its content, so that a sanitizer sees a read beyond it.
    const std::vector<std::byte> cut(body.begin(),
                                     body.begin() + static_cast<std::ptrdiff_t>(size));
    auto result = decode_value<Everything>(cut);
    if (result) {
      // Cut between two fields it is a body of an older version.
      CHECK(encoded(*result).size() >= size);
    } else {
      CHECK(result.error() == ec::malformed);
    }
  }
  for (std::size_t bit = 0; bit < body.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1U << (bit % 8));
    body[bit / 8] ^= mask;
    if (auto result = decode_value<Everything>(body)) {
      encoded(*result);
    }
    body[bit / 8] ^= mask;
  }
}
