#include "net/node_id.hpp"

#include <sys/random.h>

#include <charconv>
#include <cstring>
#include <random>

namespace troupe {

NodeId NodeId::random() {
  std::array<std::uint64_t, 2> words{};
  std::size_t have = 0;
  while (have < sizeof(words)) {
    const auto got =
        ::getrandom(reinterpret_cast<std::byte*>(words.data()) + have, sizeof(words) - have, 0);
    if (got > 0) {
      have += static_cast<std::size_t>(got);
    } else if (errno != EINTR) {
      // Kernels without getrandom: std::random_device reads the same source or throws.
      std::random_device device;
      for (auto& word : words) {
        word = (static_cast<std::uint64_t>(device()) << 32U) | device();
      }
      break;
    }
  }
  // An all-zero id means "none".
  return {words[0] | 1U, words[1]};
}

expected<NodeId> NodeId::parse(std::string_view text) {
  std::array<std::uint64_t, 2> words{};
  const auto bad = [&] {
    return fail(ec::malformed, "a node id has 32 hexadecimal digits, got " +
                                   std::to_string(text.size()) + " characters");
  };
  if (text.size() != 32) {
    return bad();
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const char* first = text.data() + i * 16;
    const auto [end, status] = std::from_chars(first, first + 16, words[i], 16);
    if (status != std::errc{} || end != first + 16) {
      return bad();
    }
  }
  return NodeId{words[0], words[1]};
}

std::string to_string(const NodeId& id) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string result(32, '0');
  for (std::size_t i = 0; i < 16; ++i) {
    const auto shift = static_cast<unsigned>(60 - 4 * i);
    result[i] = digits[(id.high() >> shift) & 15U];
    result[16 + i] = digits[(id.low() >> shift) & 15U];
  }
  return result;
}

std::string short_string(const NodeId& id) { return to_string(id).substr(0, 8); }

}  // namespace troupe
