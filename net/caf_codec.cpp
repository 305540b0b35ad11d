#include "net/caf_codec.hpp"

#include "net/caf_error.hpp"
#include "net/message_codec.hpp"

namespace troupe::net {

namespace {

// Longer ones are cut: an error is told to people, it is no way to move data.
constexpr std::size_t max_error_text = std::size_t{16} << 10U;
constexpr std::size_t max_address = 1024;

bool put_wire_actor(Encoder& e, const expected<WireActor>& actor) {
  if (!actor) {
    return e.fail(actor.error().code(), "an actor handle: " + actor.error().text());
  }
  if (actor->is_null()) {
    return e.value(false);
  }
  if (actor->address.size() > max_address) {
    return e.fail(ec::limit_exceeded, "an actor's address of more than 1 kB");
  }
  return e.value(true) && e.value(actor->node) && e.value(actor->id) && e.value(actor->address);
}

bool needs_handle_codec(Encoder& e) {
  return e.fail(ec::invalid_argument,
                "an actor handle where none can travel (no HandleCodec was given)");
}

}  // namespace

expected<WireActor> HandleCodec::export_address(const caf::actor_addr& address) {
  const auto handle = caf::actor_cast<caf::strong_actor_ptr>(address);
  return handle ? export_actor(handle) : expected<WireActor>{WireActor{}};
}

namespace detail {

bool encode_handle(Encoder& e, const caf::strong_actor_ptr& handle) {
  if (!handle) {
    return e.value(false);
  }
  HandleCodec* handles = e.context().handles;
  return handles != nullptr ? put_wire_actor(e, handles->export_actor(handle))
                            : needs_handle_codec(e);
}

bool encode_address(Encoder& e, const caf::actor_addr& address) {
  if (!address) {
    return e.value(false);
  }
  HandleCodec* handles = e.context().handles;
  return handles != nullptr ? put_wire_actor(e, handles->export_address(address))
                            : needs_handle_codec(e);
}

bool decode_handle(Decoder& d, caf::strong_actor_ptr& handle) {
  bool present = false;
  if (!d.value(present)) {
    return false;
  }
  if (!present) {
    handle = nullptr;
    return true;
  }
  WireActor actor;
  if (!d.value(actor.node) || !d.value(actor.id) || !d.value(actor.address)) {
    return false;
  }
  if (actor.is_null() || actor.address.size() > max_address) {
    return d.fail(ec::malformed, "an actor handle without identity or with an overlong address");
  }
  HandleCodec* handles = d.context().handles;
  if (handles == nullptr) {
    return d.fail(ec::malformed, "an actor handle where none is allowed");
  }
  expected<caf::strong_actor_ptr> imported = handles->import_actor(actor);
  if (!imported) {
    return d.fail(imported.error().code(), "an actor handle: " + imported.error().text());
  }
  handle = std::move(*imported);
  return true;
}

}  // namespace detail

bool CodecTraits<caf::error>::encode(Encoder& e, const caf::error& x) {
  if (!x) {
    e.raw(std::uint8_t{0});
    return true;
  }
  e.raw(x.code());
  e.raw(static_cast<std::uint64_t>(x.category()));
  std::string text = context_text(x);
  text.resize(std::min(text.size(), max_error_text));
  return e.temporaries([&] { return e.value(text); });
}

bool CodecTraits<caf::error>::decode(Decoder& d, caf::error& x) {
  std::uint8_t code = 0;
  if (!d.raw(code)) {
    return false;
  }
  if (code == 0) {
    x = caf::error{};
    return true;
  }
  std::uint64_t category = 0;
  std::string text;
  if (!d.raw(category) || !d.value(text)) {
    return false;
  }
  const auto atom = static_cast<caf::atom_value>(category);
  x = text.empty() ? caf::error{code, atom}
                   : caf::error{code, atom, caf::make_message(std::move(text))};
  return true;
}

bool CodecTraits<caf::message>::encode(Encoder& e, const caf::message& x) {
  const Encoder::Frame frame = e.begin_frame();
  return e.nested([&] { return detail::encode_elements_of(e, x); }) && e.end_frame(frame);
}

bool CodecTraits<caf::message>::decode(Decoder& d, caf::message& x) {
  std::size_t n = 0;
  return d.count(1, n) && d.framed(n, [&] { return detail::decode_elements_into(d, x); });
}

}  // namespace troupe::net
