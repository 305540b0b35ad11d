// Why: whether a node is alive must be answered while its actors, its links and its compute threads
// are busy. Heartbeats therefore have a connection and an executor of their own; nothing else runs
// there. It is also the failure detector's eyes: it says of each watched peer whether it is alive,
// suspect or gone; what follows from that is decided elsewhere (supervision/).
// Thread-safety: every member from any thread. `allow`, `on_change` and `on_verdict` are called on
// the heartbeat executor, must not block, and may call any member.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/phi.hpp"
#include "net/stream.hpp"

namespace troupe::net {

/// What this node makes of a watched peer.
enum class HeartbeatVerdict : std::uint8_t {
  alive,    ///< a valid frame arrived
  suspect,  ///< not heard for longer than is plausible
  gone,     ///< nothing listens at its address, or another node does
};

struct HeartbeatConfig {
  /// Each end sends a ping this often. All connections of a node are served by one timer.
  Duration interval = std::chrono::milliseconds{250};
  /// A connection on which nothing was heard this long is closed (and dialled anew if watched).
  Duration silence = std::chrono::seconds{2};
  Duration dial_timeout = std::chrono::seconds{2};
  /// Wait before the next dial: doubles from first to most, times a factor in [0.5, 1.5).
  Duration backoff_first = std::chrono::milliseconds{100};
  Duration backoff_most = std::chrono::seconds{5};
  /// Of the jitter; mixed with the node's own id.
  std::uint64_t seed = 0;
  /// A peer that sends more frames than this in a second loses its connection.
  std::uint32_t frames_per_second = 400;
  /// Peers at a time; further incoming connections are closed.
  std::size_t max_peers = 10'000;
  /// `first_interval` and `longest_sample` are set from `interval` unless given (not zero).
  PhiConfig phi{100, std::chrono::milliseconds{50}, Duration{0}, Duration{0}, Duration{0}};
  /// Who may connect; empty: every node (a node that is watched always may).
  std::function<bool(const NodeId&)> allow;
  /// A peer has become connected, or not any more (with the reason).
  std::function<void(const NodeId& peer, bool connected, const error& reason)> on_change;
  /// A watched peer is suspect when its phi exceeds this. 0: phi does not matter; a peer that was not
  /// heard for `silence` is suspect. A peer that was never heard is so after `silence` either way.
  double suspect_phi = 0.0;
  /// The verdict about a watched peer has changed; the first one counts as a change. `reason` is one
  /// clause. A peer that is gone goes on being dialled, and may become alive again.
  std::function<void(const NodeId& peer, HeartbeatVerdict verdict, const std::string& reason)>
      on_verdict;
};

struct HeartbeatStats {
  bool connected = false;
  /// Of any valid frame; empty before the first.
  std::optional<TimePoint> last_heard;
  /// When the newest ping that the peer has answered was sent: its process was alive after that.
  /// Not older than about two intervals, or one and half a second, while all is well.
  std::optional<TimePoint> confirmed;
  /// Round trips, over the last 128; zero before the first.
  Duration rtt_last{0};
  Duration rtt_mean{0};
  Duration rtt_p99{0};
  Duration rtt_max{0};
  /// Suspicion at the time of the call, see net/phi.hpp; 0 before the first heartbeat.
  double phi = 0.0;
  /// Whole intervals since `last_heard`.
  std::uint64_t missed = 0;
  std::uint64_t pings_sent = 0;
  std::uint64_t pings_received = 0;
  /// Connections that came up so far.
  std::uint64_t connects = 0;
};

class Heartbeats {
 public:
  /// `transport` must outlive the functions that its heartbeat executor still has queued when this
  /// object goes. Does not touch `transport.on_accept`: the owner hands connections to `accept`.
  Heartbeats(Transport& transport, NodeId self, HeartbeatConfig config = {});
  ~Heartbeats();
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;

  /// Keeps a connection to `peer`. An empty address: waits for the peer's dial and keeps its
  /// record. Called again with another address it dials that one at once.
  void watch(NodeId peer, std::string address);

  /// Takes over an incoming stream whose purpose is heartbeat.
  void accept(OpenStream open);

  /// Closes the connections to `peer` and forgets its record.
  void forget(NodeId peer);

  /// Whether `watch` was called for `peer`, and `forget` or `stop` not since.
  bool is_watched(const NodeId& peer) const;

  /// Replaces `HeartbeatConfig::allow`; counts for every `accept` after this call. The function before
  /// may still run until the executor has come by. Connections that exist stay.
  void set_allow(std::function<bool(const NodeId&)> allow);

  /// Closes everything; nothing is dialled or accepted afterwards. Also done by the destructor.
  void stop();

  /// Empty for a node that is neither watched nor connected.
  std::optional<HeartbeatStats> stats(const NodeId& peer) const;
  std::vector<NodeId> peers() const;

  /// Streams closed because of bytes against the protocol.
  std::uint64_t malformed() const;

 private:
  class Core;
  std::shared_ptr<Core> core_;
};

}  // namespace troupe::net
