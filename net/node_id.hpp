// Why: a node is identified by 128 random bits drawn at each start, so that a restarted process,
// a copied container image or a second process on the host can never be mistaken for another.
// Names and addresses are only labels.
// Thread-safety: value type.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "net/error.hpp"

namespace troupe {

class NodeId {
 public:
  constexpr NodeId() = default;
  constexpr NodeId(std::uint64_t high, std::uint64_t low) : high_(high), low_(low) {}

  /// 128 bits from the operating system's generator. Identity is the one thing that must not follow
  /// from a seed; simulations construct their ids explicitly.
  static NodeId random();

  /// Parses the 32 hexadecimal digits that `to_string` gives.
  static expected<NodeId> parse(std::string_view text);

  constexpr std::uint64_t high() const noexcept { return high_; }
  constexpr std::uint64_t low() const noexcept { return low_; }
  constexpr explicit operator bool() const noexcept { return (high_ | low_) != 0; }

  // NOLINTNEXTLINE(modernize-use-nullptr): the check mistakes the comparison's result for a pointer
  friend constexpr auto operator<=>(const NodeId&, const NodeId&) = default;

 private:
  std::uint64_t high_ = 0;
  std::uint64_t low_ = 0;
};

/// 32 lower-case hexadecimal digits.
std::string to_string(const NodeId& id);

/// The first 8 digits, for logs.
std::string short_string(const NodeId& id);

}  // namespace troupe

template <>
struct std::hash<troupe::NodeId> {
  std::size_t operator()(const troupe::NodeId& id) const noexcept {
    return static_cast<std::size_t>(id.high() ^ (id.low() * 0x9E3779B97F4A7C15ULL));
  }
};
