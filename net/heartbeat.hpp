// Why: whether a node is alive must be answered while its actors, its links and its compute threads
// are busy. Heartbeats therefore have a connection and an executor of their own; nothing else runs
// there, and pings are answered where they arrive.
// Thread-safety: every member from any thread. `allow` and `on_change` are called on the heartbeat
// executor, must not block, and may call any member.
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

struct HeartbeatConfig {
  /// Each end sends a ping this often.
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
};

struct HeartbeatStats {
  bool connected = false;
  /// Of any valid frame; empty before the first.
  std::optional<TimePoint> last_heard;
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
  /// record. Called again it changes the address.
  void watch(NodeId peer, std::string address);

  /// Takes over an incoming stream whose purpose is heartbeat.
  void accept(OpenStream open);

  /// Closes the connections to `peer` and forgets its record.
  void forget(NodeId peer);

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
