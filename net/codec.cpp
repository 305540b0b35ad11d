#include "net/codec.hpp"

#include <algorithm>
#include <limits>

namespace troupe::net {

void EncodedBody::clear() noexcept {
  inline_bytes.clear();
  externals.clear();
  external_size = 0;
}

std::vector<std::byte> EncodedBody::flatten() const {
  std::vector<std::byte> all;
  all.reserve(size());
  for_each_part(
      [&all](std::span<const std::byte> part) { all.insert(all.end(), part.begin(), part.end()); });
  return all;
}

Encoder::Encoder(EncodedBody& out, CodecContext context, bool allow_external)
    : out_(out), allow_external_(allow_external), context_(context) {
  const std::size_t used = out_.inline_bytes.size();
  out_.inline_bytes.resize(used + 128);
  base_ = out_.inline_bytes.data();
  cursor_ = base_ + used;
  end_ = base_ + out_.inline_bytes.size();
}

void Encoder::grow(std::size_t size) {
  const auto used = static_cast<std::size_t>(cursor_ - base_);
  out_.inline_bytes.resize(std::max(used + size, 2 * used));
  base_ = out_.inline_bytes.data();
  cursor_ = base_ + used;
  end_ = base_ + out_.inline_bytes.size();
}

void Encoder::trim() {
  out_.inline_bytes.resize(static_cast<std::size_t>(cursor_ - base_));
  base_ = out_.inline_bytes.data();
  cursor_ = end_ = base_ + out_.inline_bytes.size();
}

void Encoder::external(const void* data, std::size_t size) {
  out_.externals.push_back(
      {static_cast<std::size_t>(cursor_ - base_), {static_cast<const std::byte*>(data), size}});
  out_.external_size += size;
}

bool Encoder::fail(ec code, std::string text) {
  if (!error_) {
    error_ = error{code, "cannot encode: " + std::move(text)};
  }
  return false;
}

error Encoder::finish() {
  trim();
  return std::move(error_);
}

bool Decoder::align(std::size_t alignment) {
  const std::size_t padding = (0 - offset()) & (alignment - 1);
  std::span<const std::byte> zeros;
  if (!view(padding, zeros)) {
    return false;
  }
  if (std::any_of(zeros.begin(), zeros.end(), [](std::byte b) { return b != std::byte{0}; })) {
    return fail(ec::malformed, "padding that is not zero");
  }
  return true;
}

bool Decoder::fail(ec code, std::string text) {
  if (!error_) {
    error_ = error{
        code, "cannot decode: " + std::move(text) + " (at byte " + std::to_string(offset()) + ")"};
  }
  return false;
}

bool Decoder::truncated(std::size_t wanted) {
  return fail(ec::malformed,
              std::to_string(wanted) + " bytes expected, " + std::to_string(remaining()) + " left");
}

bool Decoder::overlong(std::size_t elements, std::size_t min_size) {
  return fail(ec::malformed, std::to_string(elements) + " elements of at least " +
                                 std::to_string(min_size) + " bytes announced, " +
                                 std::to_string(remaining()) + " bytes left");
}

error Decoder::finish() {
  if (!error_ && cursor_ != end_) {
    fail(ec::malformed, std::to_string(remaining()) + " bytes left over");
  }
  return std::move(error_);
}

namespace detail {

bool encode_protobuf(Encoder& e, const google::protobuf::MessageLite& x) {
  if (!x.IsInitialized()) {
    return e.fail(ec::invalid_argument, "required fields of " + x.GetTypeName() +
                                            " are not set: " + x.InitializationErrorString());
  }
  const std::size_t size = x.ByteSizeLong();
  if (size > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    return e.fail(ec::limit_exceeded, x.GetTypeName() + " is larger than 2 GB");
  }
  x.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(e.skip(size)));
  return true;
}

bool decode_protobuf(Decoder& d, google::protobuf::MessageLite& x) {
  std::span<const std::byte> part;
  d.view(d.remaining(), part);
  if (part.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    return d.fail(ec::limit_exceeded, x.GetTypeName() + " is larger than 2 GB");
  }
  if (!x.ParseFromArray(part.data(), static_cast<int>(part.size()))) {
    return d.fail(ec::malformed, "bytes that are no valid " + x.GetTypeName());
  }
  return true;
}

}  // namespace detail

}  // namespace troupe::net
