// Why: one error type for the whole runtime. A result that can fail is an `expected<T>`; exceptions
// stay inside tasks and user code and are turned into an `error` at the boundary. A separate code
// exists only where a caller would react to it; everything else is told by the text.
// Thread-safety: values; safe to copy between threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

namespace troupe {

/// What went wrong, as far as a caller would act on it.
enum class ec : std::uint8_t {
  none = 0,
  /// An argument, flag or configuration value is not acceptable. Fix the input.
  invalid_argument,
  /// The remote node cannot be reached, or its link is down. Retry elsewhere or later.
  node_unreachable,
  /// As node_unreachable or actor_down, and the request may already have been executed.
  may_have_executed,
  /// The target actor has ended.
  actor_down,
  /// The send queue towards the node is full (backpressure). Retry when it is writable again.
  would_block,
  /// Nothing came back within the time allowed.
  timeout,
  /// Bytes from the network or a file do not follow the format.
  malformed,
  /// The type of a message is not registered on this node.
  unknown_type,
  /// Two types, names or versions exclude each other.
  conflict,
  /// Versions, cluster names or credentials do not match; retrying will not help.
  handshake_refused,
  /// A limit (size, count) was exceeded.
  limit_exceeded,
  /// No such name, file or entry.
  not_found,
  /// The operating system or a library refused; the text has its words.
  system_error,
  /// Authentication failed: certificate missing, expired, or not from this cluster.
  unauthorized,
  /// The object was closed, or the process is shutting down.
  closed,
  /// The other side has forgotten this session (restart, or grace time over).
  session_lost,
  /// A second connection between the same two nodes; the other one stays.
  duplicate,
  /// A handler threw; the text is the exception's.
  exception,
  /// Nothing listens at the address: the process that did is gone.
  refused,
};

/// Stable lower-case name of `code`, e.g. "node_unreachable".
std::string_view to_string(ec code) noexcept;

/// The code for a name given by `to_string`, or `ec::system_error` for an unknown one.
ec ec_from_string(std::string_view name) noexcept;

/// A code and a sentence that says what failed, where, and what to do.
class error {
 public:
  error() = default;
  error(ec code, std::string text) : code_(code), text_(std::move(text)) {}

  ec code() const noexcept { return code_; }
  const std::string& text() const noexcept { return text_; }

  /// True when this is an error.
  explicit operator bool() const noexcept { return code_ != ec::none; }

  friend bool operator==(const error& a, ec b) noexcept { return a.code_ == b; }

 private:
  ec code_ = ec::none;
  std::string text_;
};

/// "node_unreachable: link to … is down".
std::string to_string(const error& err);

/// A value or an error.
template <class T>
using expected = tl::expected<T, error>;

/// Shorthand for the failing branch of an `expected`.
inline tl::unexpected<error> fail(ec code, std::string text) {
  return tl::unexpected<error>(error{code, std::move(text)});
}

inline tl::unexpected<error> fail(error err) { return tl::unexpected<error>(std::move(err)); }

}  // namespace troupe
