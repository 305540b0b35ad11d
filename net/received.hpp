// Why: what is decoded must look like any CAF message or mailbox element. CAF's own classes for
// that bring its serialisers along for each type, which costs most of the compile time and cannot
// hold every type; these hold one value and leave serialising to this codec.
// Thread-safety: as CAF's messages: reading is safe from any thread, writing needs the only
// reference.
#pragma once

#include <string>
#include <utility>

#include <caf/deep_to_string.hpp>
#include <caf/detail/message_data.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/make_counted.hpp>
#include <caf/message.hpp>
#include <caf/message_id.hpp>
#include <caf/rtti_pair.hpp>
#include <caf/type_erased_tuple.hpp>
#include <caf/type_erased_value.hpp>
#include <caf/type_nr.hpp>

#include "net/credit.hpp"

namespace troupe::net {

/// What a mailbox element needs apart from its content.
struct ReceivedParts {
  caf::strong_actor_ptr sender;
  caf::message_id mid;
  caf::mailbox_element::forwarding_stack stages;
  CreditToken credit;
};

namespace detail {

/// CAF's serialisers are not for these values; `encode_message` is.
caf::error not_for_caf();

/// One element of a message of many.
template <class T>
class ReceivedValue final : public caf::type_erased_value {
 public:
  ReceivedValue() = default;
  explicit ReceivedValue(const T& x) : value_(x) {}

  T& value() { return value_; }

  void* get_mutable() override { return &value_; }
  caf::error load(caf::deserializer&) override { return not_for_caf(); }
  caf::rtti_pair type() const override { return caf::make_rtti_pair<T>(); }
  const void* get() const override { return &value_; }
  caf::error save(caf::serializer&) const override { return not_for_caf(); }
  std::string stringify() const override { return caf::deep_to_string(value_); }
  caf::type_erased_value_ptr copy() const override {
    return caf::type_erased_value_ptr{new ReceivedValue(value_)};
  }

 private:
  T value_{};
};

/// A tuple of one value on top of `Base`, which is or derives from caf::type_erased_tuple.
template <class Base, class T>
class SingleValue : public Base {
 public:
  SingleValue() = default;
  explicit SingleValue(T x) : value_(std::move(x)) {}

  T& value() { return value_; }
  const T& value() const { return value_; }

  using Base::copy;
  using Base::load;
  using Base::save;
  using Base::stringify;

  void* get_mutable(std::size_t) override { return &value_; }
  caf::error load(std::size_t, caf::deserializer&) override { return not_for_caf(); }
  std::size_t size() const noexcept override { return 1; }
  std::uint32_t type_token() const noexcept override { return caf::make_type_token<T>(); }
  caf::rtti_pair type(std::size_t) const noexcept override { return caf::make_rtti_pair<T>(); }
  const void* get(std::size_t) const noexcept override { return &value_; }
  std::string stringify(std::size_t) const override { return caf::deep_to_string(value_); }
  caf::type_erased_value_ptr copy(std::size_t) const override {
    return caf::type_erased_value_ptr{new ReceivedValue<T>(value_)};
  }
  caf::error save(std::size_t, caf::serializer&) const override { return not_for_caf(); }

 private:
  T value_{};
};

/// The content of a message of one value.
template <class T>
class ReceivedData final : public SingleValue<caf::detail::message_data, T> {
 public:
  using SingleValue<caf::detail::message_data, T>::SingleValue;
  using SingleValue<caf::detail::message_data, T>::copy;
  ReceivedData* copy() const override { return new ReceivedData(this->value()); }
};

template <class T>
caf::message single_message(T x) {
  return caf::message{
      caf::detail::message_data::cow_ptr{caf::make_counted<ReceivedData<T>>(std::move(x))}};
}

/// A mailbox element with one value inside and the credit of its bytes, in one allocation.
template <class T>
class ReceivedElement final : public caf::mailbox_element,
                              public SingleValue<caf::type_erased_tuple, T> {
 public:
  explicit ReceivedElement(ReceivedParts&& parts)
      : caf::mailbox_element(std::move(parts.sender), parts.mid, std::move(parts.stages)),
        credit_(std::move(parts.credit)) {}

  caf::type_erased_tuple& content() override { return *this; }
  const caf::type_erased_tuple& content() const override { return *this; }
  caf::message move_content_to_message() override {
    return single_message(std::move(this->value()));
  }
  caf::message copy_content_to_message() const override { return single_message(this->value()); }

 private:
  CreditToken credit_;
};

}  // namespace detail

}  // namespace troupe::net
