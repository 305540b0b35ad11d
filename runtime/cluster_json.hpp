// Why: the JSON in which a node tells people and programs about the cluster has one writer, so that the
// command line, the dashboard and scripts can rely on its shape.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "net/error.hpp"
#include "net/node_id.hpp"
#include "supervision/membership.hpp"

namespace troupe {

/// "2026-11-30T12:00:00.000Z" for milliseconds since 1970; the ends of what four digits of a year can say
/// for what lies beyond.
std::string iso_time(std::int64_t ms);

/// Answer of GET /api/v1/cluster. Texts are cut to sane lengths, invalid UTF-8 becomes U+FFFD.
std::string cluster_json(const View& view);

/// Answer of GET /api/v1/events, in the order given.
std::string events_json(const std::vector<MemberEvent>& events);

/// Answer of a POST that changed something about `node`.
std::string accepted_json(const NodeId& node, std::string_view text);

/// Body of an answer outside 2xx.
std::string error_json(const error& reason);

/// The HTTP status that goes with an error.
unsigned http_status_of(ec code) noexcept;

}  // namespace troupe
