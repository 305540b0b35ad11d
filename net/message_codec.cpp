#include "net/message_codec.hpp"

#include <exception>
#include <new>
#include <string>
#include <utility>

#include <caf/detail/dynamic_message_data.hpp>
#include <caf/make_counted.hpp>
#include <caf/type_nr.hpp>

#include "net/caf_error.hpp"

namespace troupe::net {

namespace {

// A tag and a length.
constexpr std::size_t element_header = 8;

/// A mailbox element around a message of any number of elements.
class ReceivedMessage final : public caf::mailbox_element {
 public:
  ReceivedMessage(ReceivedParts&& parts, caf::message content)
      : caf::mailbox_element(std::move(parts.sender), parts.mid, std::move(parts.stages)),
        content_(std::move(content)),
        credit_(std::move(parts.credit)) {
    if (content_.vals() == nullptr) {
      // CAF reads through the pointer even when there are no elements.
      content_ = caf::message{caf::detail::message_data::cow_ptr{
          caf::make_counted<caf::detail::dynamic_message_data>()}};
    }
  }

  caf::type_erased_tuple& content() override { return content_; }
  const caf::type_erased_tuple& content() const override { return content_.content(); }
  caf::message move_content_to_message() override { return std::move(content_); }
  caf::message copy_content_to_message() const override { return content_; }

 private:
  caf::message content_;
  CreditToken credit_;
};

std::string hex(std::uint32_t tag) {
  constexpr const char* digits = "0123456789abcdef";
  std::string text = "0x";
  for (int shift = 28; shift >= 0; shift -= 4) {
    text += digits[(tag >> static_cast<unsigned>(shift)) & 15U];
  }
  return text;
}

bool not_registered(Encoder& e, std::size_t position, const caf::rtti_pair& rtti) {
  const std::string type =
      rtti.second != nullptr ? demangle(*rtti.second) : caf::numbered_type_names[rtti.first - 1];
  return e.fail(ec::unknown_type, "element " + std::to_string(position) + " has type '" + type +
                                      "', which is not registered; call TypeRegistry::add<" + type +
                                      ">(\"a.stable.name\") on both nodes before they start");
}

/// Reads tag and length; null after `fail`.
const TypeInfo* next_element(Decoder& d, std::size_t& length) {
  std::uint32_t tag = 0;
  std::uint32_t size = 0;
  if (!d.raw(tag) || !d.raw(size)) {
    return nullptr;
  }
  const TypeInfo* info = d.context().registry->find(tag);
  if (info == nullptr) {
    d.fail(ec::unknown_type,
           "type tag " + hex(tag) +
               " is not registered on this node; both nodes must register the same "
               "names");
    return nullptr;
  }
  length = size;
  return info;
}

/// Elements of a message and their number.
bool element_count(Decoder& d, std::size_t& count) { return d.count(element_header, count); }

bool decode_one(Decoder& d, caf::message& out) {
  std::size_t length = 0;
  const TypeInfo* info = next_element(d, length);
  return info != nullptr && d.framed(length, [&] { return info->decode_message(d, out); });
}

bool decode_many(Decoder& d, std::size_t count, caf::message& out) {
  // One holder and its pointer for each element, on top of the value.
  if (!d.charge(count, 64)) {
    return false;
  }
  caf::detail::dynamic_message_data::elements elements;
  elements.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t length = 0;
    const TypeInfo* info = next_element(d, length);
    if (info == nullptr || !d.framed(length, [&] {
          elements.push_back(info->decode_value(d));
          return elements.back() != nullptr;
        })) {
      return false;
    }
  }
  out = caf::message{caf::detail::message_data::cow_ptr{
      caf::make_counted<caf::detail::dynamic_message_data>(std::move(elements))}};
  return true;
}

bool decode_counted(Decoder& d, std::size_t count, caf::message& out) {
  switch (count) {
    case 0:
      out = caf::message{};
      return true;
    case 1:
      return decode_one(d, out);
    default:
      return decode_many(d, count, out);
  }
}

/// Runs `fn` and turns what user code or the allocator throws into an error.
template <class F>
error guarded(const char* what, F&& fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return error{ec::limit_exceeded, std::string{"out of memory while "} + what + " a message"};
  } catch (const std::exception& ex) {
    return error{ec::exception,
                 std::string{"an exception while "} + what + " a message: " + ex.what()};
  } catch (...) {
    return error{ec::exception,
                 std::string{"an exception of unknown type while "} + what + " a message"};
  }
}

}  // namespace

namespace detail {

caf::error not_for_caf() {
  return make_caf_error(ec::invalid_argument,
                        "a received value cannot be serialised by CAF; use encode_message");
}

bool encode_elements_of(Encoder& e, const caf::type_erased_tuple& content) {
  const TypeRegistry* registry = e.context().registry;
  const std::size_t count = content.size();
  if (count != 0 && registry == nullptr) {
    return e.fail(ec::invalid_argument, "a message where none can travel (no TypeRegistry given)");
  }
  if (!e.count(count)) {
    return false;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const caf::rtti_pair rtti = content.type(i);
    const TypeInfo* info = registry->find(rtti);
    if (info == nullptr) {
      return not_registered(e, i, rtti);
    }
    e.raw(info->tag);
    const Encoder::Frame frame = e.begin_frame();
    if (!info->encode(e, content.get(i)) || !e.end_frame(frame)) {
      return false;
    }
  }
  return true;
}

bool decode_elements_into(Decoder& d, caf::message& out) {
  std::size_t count = 0;
  if (!element_count(d, count)) {
    return false;
  }
  if (count != 0 && d.context().registry == nullptr) {
    return d.fail(ec::malformed, "a message where none is allowed");
  }
  return decode_counted(d, count, out) &&
         (d.remaining() == 0 || d.fail(ec::malformed, "bytes left over after the message"));
}

}  // namespace detail

error encode_message(const TypeRegistry& registry, const caf::type_erased_tuple& content,
                     HandleCodec* handles, EncodedBody& out, bool allow_external) {
  error result = guarded("encoding", [&] {
    Encoder encoder{out, {&registry, handles}, allow_external};
    detail::encode_elements_of(encoder, content);
    return encoder.finish();
  });
  if (result) {
    out.clear();
  }
  return result;
}

expected<caf::message> decode_message(const TypeRegistry& registry, std::span<const std::byte> body,
                                      std::shared_ptr<const void> owner, HandleCodec* handles,
                                      const DecodeLimits& limits) {
  caf::message result;
  error err = guarded("decoding", [&] {
    Decoder decoder{body, std::move(owner), {&registry, handles}, limits};
    detail::decode_elements_into(decoder, result);
    return decoder.finish();
  });
  if (err) {
    return fail(std::move(err));
  }
  return result;
}

expected<caf::mailbox_element_ptr> decode_element(const TypeRegistry& registry,
                                                  std::span<const std::byte> body,
                                                  std::shared_ptr<const void> owner,
                                                  HandleCodec* handles,
                                                  caf::strong_actor_ptr sender, caf::message_id mid,
                                                  caf::mailbox_element::forwarding_stack stages,
                                                  CreditToken credit, const DecodeLimits& limits) {
  ReceivedParts parts{std::move(sender), mid, std::move(stages), std::move(credit)};
  caf::mailbox_element_ptr result;
  error err = guarded("decoding", [&] {
    Decoder decoder{body, std::move(owner), {&registry, handles}, limits};
    std::size_t count = 0;
    if (!element_count(decoder, count)) {
      return decoder.finish();
    }
    if (count == 1) {
      std::size_t length = 0;
      if (const TypeInfo* info = next_element(decoder, length)) {
        decoder.framed(length, [&] {
          result = info->decode_element(decoder, std::move(parts));
          return result != nullptr;
        });
      }
    } else {
      caf::message content;
      if (decode_counted(decoder, count, content)) {
        result.reset(new ReceivedMessage(std::move(parts), std::move(content)));
      }
    }
    return decoder.finish();
  });
  if (err) {
    return fail(std::move(err));
  }
  return result;
}

}  // namespace troupe::net
