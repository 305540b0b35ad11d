// Arbitrary bytes as a message: decoding must end with a value or an error, never with a crash, a
// leak or memory out of proportion; what was accepted must survive another round.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include <caf/system_messages.hpp>
#include <google/protobuf/struct.pb.h>

#include "net/message_codec.hpp"

namespace fuzz {

struct Part {
  int number = 0;
  std::string name;
  std::vector<double> values;
};
template <class Inspector>
auto inspect(Inspector& f, Part& x) {
  return f(x.number, x.name, x.values);
}

struct Tree {
  std::vector<Tree> children;
  std::optional<std::string> label;
};
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Tree& x) {
  return f(x.children, x.label);
}

struct Everything {
  bool flag = false;
  std::array<Part, 2> parts;
  std::map<std::string, Part> ordered;
  std::unordered_map<std::uint32_t, std::vector<bool>> unordered;
  std::set<std::uint16_t> set;
  std::variant<std::monostate, int, Part> variant;
  std::tuple<float, std::pair<int, std::string>> tuple;
  troupe::net::Bytes bytes;
  google::protobuf::Value value;
  caf::actor actor;
  caf::message message;
  caf::error error;
  std::chrono::duration<std::int16_t> pause{};
};
template <class Inspector>
auto inspect(Inspector& f, Everything& x) {
  return f(x.flag, x.parts, x.ordered, x.unordered, x.set, x.variant, x.tuple, x.bytes, x.value,
           x.actor, x.message, x.error, x.pause);
}

}  // namespace fuzz

TROUPE_ALLOW_MESSAGE(fuzz::Part);
TROUPE_ALLOW_MESSAGE(fuzz::Tree);
TROUPE_ALLOW_MESSAGE(fuzz::Everything);

namespace {

using namespace troupe;
using namespace troupe::net;

/// Knows no actor: even ids are gone, odd ones cannot be reached.
class NoHandles final : public HandleCodec {
 public:
  expected<WireActor> export_actor(const caf::strong_actor_ptr&) override { return WireActor{}; }
  expected<caf::strong_actor_ptr> import_actor(const WireActor& actor) override {
    if (actor.id % 2 != 0) {
      return troupe::fail(ec::node_unreachable, "not reachable");
    }
    return caf::strong_actor_ptr{};
  }
};

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

const TypeRegistry& types() {
  static const auto registry = [] {
    auto filled = std::make_unique<TypeRegistry>();
    require(filled->add<fuzz::Part>("fuzz.part").has_value());
    require(filled->add<fuzz::Tree>("fuzz.tree").has_value());
    require(filled->add<fuzz::Everything>("fuzz.everything").has_value());
    require(filled->add<google::protobuf::Struct>("fuzz.struct").has_value());
    filled->freeze();
    google::protobuf::SetLogHandler(nullptr);
    return filled;
  }();
  return *registry;
}

std::vector<std::byte> encoded(const caf::type_erased_tuple& content, HandleCodec& handles) {
  EncodedBody body;
  const error err = encode_message(types(), content, &handles, body);
  require(!err);
  return body.flatten();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // A block of exactly this size, so that AddressSanitizer sees a read beyond it.
  const std::shared_ptr<std::byte[]> block{new std::byte[size]};
  if (size > 0) {
    std::memcpy(block.get(), data, size);
  }
  const std::span<const std::byte> body{block.get(), size};
  NoHandles handles;
  DecodeLimits limits;
  limits.allowance = std::uint64_t{1} << 20U;

  auto element = decode_element(types(), body, block, &handles, nullptr, caf::make_message_id(), {},
                                {}, limits);
  auto message = decode_message(types(), body, nullptr, &handles, limits);
  require(element.has_value() == message.has_value());
  if (message) {
    const auto once = encoded(*message, handles);
    require(once.size() == encoded((*element)->content(), handles).size());
    auto again = decode_message(types(), once, nullptr, &handles);
    require(again.has_value());
    require(encoded(*again, handles).size() == once.size());
  }
  return 0;
}
