// Why: the messages that both CAF's io module and Troupe carry, so that both encode the same.
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::bench {

/// A request, and its answer.
struct Small {
  std::uint64_t sequence = 0;
  std::string body;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Small& x) {
  return f(x.sequence, x.body);
}

/// A message without an answer.
struct Note {
  std::uint64_t sequence = 0;
  std::string body;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Note& x) {
  return f(x.sequence, x.body);
}

/// Asks what arrived since the last time.
struct Finish {
  std::uint64_t expected_count = 0;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Finish& x) {
  return f(x.expected_count);
}

/// The answer to `Finish`.
struct Counted {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Counted& x) {
  return f(x.count, x.bytes);
}

}  // namespace troupe::bench
