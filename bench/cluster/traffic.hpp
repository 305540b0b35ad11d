// Why: what a change costs must be told from what flows anyhow, for real and simulated clusters alike.
// Thread-safety: values.
#pragma once

#include <map>
#include <string>

namespace troupe::bench {

/// What the head has sent and received so far.
struct Traffic {
  std::map<std::string, double> bytes;  ///< by link and direction
  double messages = 0;                  ///< that the broker sent

  /// Since `before`. A link that has gone in between does not count: its last bytes are not known.
  Traffic since(const Traffic& before) const {
    Traffic result;
    for (const auto& [link, count] : bytes) {
      const auto then = before.bytes.find(link);
      result.bytes[link] = count - (then != before.bytes.end() ? then->second : 0);
    }
    result.messages = messages - before.messages;
    return result;
  }

  double total_bytes() const {
    double sum = 0;
    for (const auto& [link, count] : bytes) {
      sum += count;
    }
    return sum;
  }
};

/// Per second, while nothing changes.
struct IdleRate {
  double bytes = 0;
  double messages = 0;
};

}  // namespace troupe::bench
