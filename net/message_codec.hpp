// Why: a CAF message of registered types becomes bytes and back, without CAF's own serialisers, and
// a received one becomes a mailbox element in a single allocation that holds the sender's credit
// until its handler has run. docs/codec.md describes the format.
// Thread-safety: functions; the registry must be frozen when several threads use it.
#pragma once

#include <memory>
#include <span>

#include <caf/mailbox_element.hpp>
#include <caf/message.hpp>
#include <caf/message_id.hpp>
#include <caf/type_erased_tuple.hpp>

#include "net/caf_codec.hpp"
#include "net/codec.hpp"
#include "net/credit.hpp"
#include "net/error.hpp"
#include "net/type_registry.hpp"

namespace troupe::net {

/// Appends all elements of `content` to `out`, which must be empty. Large arrays in `content` are
/// only referenced: keep it alive until the bytes are sent, or pass `allow_external = false`. On an
/// error `out` is empty.
/// Errors: `unknown_type` (not registered; the text says what to do), `limit_exceeded`,
/// `invalid_argument`, `exception` (an `inspect` threw), and those of `handles`.
error encode_message(const TypeRegistry& registry, const caf::type_erased_tuple& content,
                     HandleCodec* handles, EncodedBody& out, bool allow_external = true);

/// Errors: `malformed`, `unknown_type` (with the tag), `limit_exceeded`, and those of `handles`.
expected<caf::message> decode_message(const TypeRegistry& registry, std::span<const std::byte> body,
                                      std::shared_ptr<const void> owner, HandleCodec* handles,
                                      const DecodeLimits& limits = {});

/// As `decode_message`, into a mailbox element that holds `credit` until it is destroyed. On an
/// error the credit is released at once.
expected<caf::mailbox_element_ptr> decode_element(
    const TypeRegistry& registry, std::span<const std::byte> body,
    std::shared_ptr<const void> owner, HandleCodec* handles, caf::strong_actor_ptr sender,
    caf::message_id mid, caf::mailbox_element::forwarding_stack stages, CreditToken credit,
    const DecodeLimits& limits = {});

namespace detail {
// Also used for a message inside a message.
bool encode_elements_of(Encoder& e, const caf::type_erased_tuple& content);
bool decode_elements_into(Decoder& d, caf::message& out);
}  // namespace detail

}  // namespace troupe::net
