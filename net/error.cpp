#include "net/error.hpp"

#include <array>

namespace troupe {

namespace {

constexpr std::array<std::string_view, 20> names{
    "none",         "invalid_argument", "node_unreachable",  "may_have_executed",
    "actor_down",   "would_block",      "timeout",           "malformed",
    "unknown_type", "conflict",         "handshake_refused", "limit_exceeded",
    "not_found",    "system_error",     "unauthorized",      "closed",
    "session_lost", "duplicate",        "exception",         "refused",
};

}  // namespace

std::string_view to_string(ec code) noexcept {
  const auto index = static_cast<std::size_t>(code);
  return index < names.size() ? names[index] : std::string_view{"unknown_error"};
}

ec ec_from_string(std::string_view name) noexcept {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) {
      return static_cast<ec>(i);
    }
  }
  return ec::system_error;
}

std::string to_string(const error& err) {
  std::string result{to_string(err.code())};
  if (!err.text().empty()) {
    result += ": ";
    result += err.text();
  }
  return result;
}

}  // namespace troupe
