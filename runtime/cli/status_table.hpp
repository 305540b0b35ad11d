// Why: what people see of a cluster is made from the same JSON that programs get. It comes from another
// process, so nothing in it is trusted: not its shape, and not to be free of terminal escapes.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "net/error.hpp"

namespace troupe::cli {

/// A header line and one line per live node. `now_ms` (since 1970) gives the ages; `with_ended` adds the
/// nodes that are down or have left. ec::malformed when it is not the JSON of a cluster.
expected<std::string> status_table(std::string_view cluster_json, std::int64_t now_ms,
                                   bool with_ended = false);

/// "3s", "5m12s", "2h03m", "4d07h".
std::string format_age(std::int64_t ms);

/// Milliseconds since 1970 of "2026-11-30T12:00:00.000Z"; negative when it is none.
std::int64_t parse_iso_time(std::string_view text);

/// Control characters become '?', and what is beyond `longest` characters is cut.
std::string one_line(std::string_view text, std::size_t longest);

}  // namespace troupe::cli
