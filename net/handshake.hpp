// Why: before two nodes exchange anything they must agree that they belong together: protocol version,
// cluster, and which session, if any, the connection resumes. The rules are pure functions here, so
// that they can be tested and fuzzed without a network.
// Thread-safety: pure functions and values.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "net/error.hpp"
#include "net/node_id.hpp"
#include "net/wire.hpp"

namespace troupe::net {

/// Largest payload of a handshake frame, in bytes.
inline constexpr std::size_t max_handshake_payload = 4096;

/// What one side tells the other (see proto/handshake.proto).
struct Hello {
  std::uint32_t version_min = protocol_version_min;
  std::uint32_t version_max = protocol_version_max;
  std::string cluster;
  NodeId node;
  std::string name;
  std::string build;
  std::string address;
  std::uint64_t session = 0;
  std::uint64_t expects = 0;
  std::uint64_t connection = 0;
  std::uint64_t received = 0;
  std::array<std::uint64_t, lane_count> credit{};
  std::uint64_t max_message = 0;
  std::uint32_t max_frame = 0;
};

/// A whole frame (header and payload) with `hello`; `type` is hello or welcome.
std::vector<std::byte> hello_frame(FrameType type, const Hello& hello);

/// A whole frame that ends a connection or link; `type` is reject or goodbye.
std::vector<std::byte> reject_frame(FrameType type, const error& reason);

/// Errors: ec::malformed for anything that is not a plausible Hello.
expected<Hello> parse_hello(std::span<const std::byte> payload);

/// The error that a reject or goodbye frame carries (ec::malformed if it is none).
error parse_reject(std::span<const std::byte> payload);

/// Whether `peer` may talk to a node that says `self`: version ranges overlap, same cluster, another
/// node. Returns the version to speak. Errors: ec::handshake_refused with both sides' values.
expected<std::uint32_t> check_hello(const Hello& self, const Hello& peer);

/// What is known locally of the session with a peer.
struct SessionState {
  bool exists = false;           ///< there is a link object for the peer
  std::uint64_t own = 0;         ///< own half of the session id
  std::uint64_t peer = 0;        ///< peer's half, 0 before the first handshake has completed
  bool connected = false;        ///< a connection is attached
  std::uint64_t connection = 0;  ///< number of the newest connection
  NodeId initiator;              ///< who dialled the attached connection
};

enum class SessionVerdict : std::uint8_t {
  attach,     ///< use the connection for the existing session, or a new one when none exists
  restart,    ///< the peer has lost the session: end the old one, then start afresh
  stale,      ///< the peer refers to a session that is gone here: refuse with ec::session_lost
  duplicate,  ///< another connection serves the session: refuse with ec::duplicate
};

/// Decides what to do with a connection dialled by `initiator` (one of the two nodes) after its Hello
/// or Welcome from `peer` has been read. Both sides come to the same choice of connection: a newer
/// number wins, and among equals the one dialled by the node with the smaller id.
SessionVerdict judge_session(const SessionState& state, const Hello& peer, const NodeId& initiator);

}  // namespace troupe::net
