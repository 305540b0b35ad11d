#include "net/heartbeat.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include "net/heartbeat_connection.hpp"
#include "net/philox.hpp"

namespace troupe::net {

namespace {

constexpr std::uint32_t jitter_role = 0x48425254U;
/// Connections to one peer at a time: one each way, and one that replaces a dead one.
constexpr std::size_t connections_per_peer = 3;
constexpr std::size_t round_trips = 128;

/// What `stats` reads; under the core's mutex.
struct Record {
  explicit Record(const PhiConfig& config) : phi(config) {}
  HeartbeatStats stats;
  PhiEstimator phi;
  std::vector<Duration> rtt;
  std::size_t rtt_next = 0;
};

struct Peer {
  std::string address;
  bool watched = false;
  bool dialling = false;
  /// Number of the last dial; the answer to an older one is not wanted any more.
  std::uint64_t dial = 0;
  std::vector<HeartbeatConnectionPtr> connections;
  HeartbeatConnectionPtr current;
  TimerId tick = 0;
  TimerId redial = 0;
  Duration backoff{0};
};

}  // namespace

class Heartbeats::Core final : public HeartbeatOwner, public std::enable_shared_from_this<Core> {
 public:
  Core(Transport& transport, NodeId self, HeartbeatConfig config)
      : executor(transport.executor(StreamPurpose::heartbeat)),
        config_(std::move(config)),
        transport_(transport),
        self_(self),
        random_(config_.seed ^ self.high() ^ self.low(), jitter_role) {
    config_.interval = std::max<Duration>(config_.interval, std::chrono::milliseconds{1});
    if (config_.phi.first_interval.count() == 0) {
      config_.phi.first_interval = config_.interval;
    }
    if (config_.phi.longest_sample.count() == 0) {
      config_.phi.longest_sample = config_.interval * 10;
    }
  }

  void watch(const NodeId& id, std::string address) {
    if (stopped_ || id == self_) {
      return;
    }
    Peer& peer = obtain(id);
    peer.watched = true;
    peer.address = std::move(address);
    dial_if_needed(id);
  }

  void accept(OpenStream open) {
    const NodeId id = open.peer;
    const auto found = peers_.find(id);
    const bool known = found != peers_.end();
    if (stopped_ || id == self_ || open.purpose != StreamPurpose::heartbeat) {
      open.stream->close(error{ec::closed, "heartbeat: not accepted here"});
    } else if (!(known && found->second.watched) && config_.allow && !config_.allow(id)) {
      open.stream->close(
          error{ec::unauthorized, "heartbeat: node " + short_string(id) + " is not a member"});
    } else if (!known && peers_.size() >= config_.max_peers) {
      open.stream->close(error{ec::limit_exceeded, "heartbeat: too many peers"});
    } else {
      add(id, std::move(open), false);
    }
  }

  void forget(const NodeId& id) {
    const auto found = peers_.find(id);
    if (found == peers_.end()) {
      return;
    }
    Peer peer = std::move(found->second);
    peers_.erase(found);
    {
      const std::lock_guard lock(mutex_);
      records_.erase(id);
    }
    executor.cancel(peer.tick);
    executor.cancel(peer.redial);
    for (const auto& connection : peer.connections) {
      connection->close(error{ec::closed, "heartbeat: the node is no longer watched"});
    }
  }

  void stop() {
    stopped_ = true;
    while (!peers_.empty()) {
      const NodeId id = peers_.begin()->first;
      forget(id);
    }
  }

  std::optional<HeartbeatStats> stats(const NodeId& id) const {
    const TimePoint now = executor.now();
    const std::lock_guard lock(mutex_);
    const auto found = records_.find(id);
    if (found == records_.end()) {
      return std::nullopt;
    }
    const Record& record = found->second;
    HeartbeatStats result = record.stats;
    result.phi = record.phi.phi(now);
    if (result.last_heard && now > *result.last_heard) {
      result.missed = static_cast<std::uint64_t>((now - *result.last_heard) / config_.interval);
    }
    if (!record.rtt.empty()) {
      std::vector<Duration> sorted = record.rtt;
      std::sort(sorted.begin(), sorted.end());
      Duration sum{0};
      for (const Duration rtt : sorted) {
        sum += rtt;
      }
      result.rtt_mean = sum / static_cast<Duration::rep>(sorted.size());
      result.rtt_p99 = sorted[(sorted.size() * 99 - 1) / 100];
      result.rtt_max = sorted.back();
    }
    return result;
  }

  std::vector<NodeId> peers() const {
    std::vector<NodeId> result;
    const std::lock_guard lock(mutex_);
    for (const auto& [id, record] : records_) {
      result.push_back(id);
    }
    return result;
  }

  std::uint64_t malformed() const {
    const std::lock_guard lock(mutex_);
    return malformed_;
  }

  // -- told by the connections --------------------------------------------------------------------

  void on_ping(const HeartbeatConnectionPtr& connection) override {
    if (!alive(connection)) {
      return;
    }
    const TimePoint now = executor.now();
    const std::lock_guard lock(mutex_);
    Record& record = records_.at(connection->peer());
    if (connection->pinged) {
      record.phi.heartbeat(now);
    } else {
      // The gap between two connections says nothing about the rhythm of pings.
      record.phi.restart(now);
      connection->pinged = true;
    }
    record.stats.last_heard = now;
    ++record.stats.pings_received;
  }

  void on_pong(const HeartbeatConnectionPtr& connection, Duration round_trip) override {
    if (!alive(connection)) {
      return;
    }
    const std::lock_guard lock(mutex_);
    Record& record = records_.at(connection->peer());
    record.stats.last_heard = executor.now();
    record.stats.rtt_last = round_trip;
    if (record.rtt.size() < round_trips) {
      record.rtt.push_back(round_trip);
    } else {
      record.rtt[record.rtt_next] = round_trip;
      record.rtt_next = (record.rtt_next + 1) % round_trips;
    }
  }

  void on_bad_peer(const HeartbeatConnectionPtr&, const error&) override {
    const std::lock_guard lock(mutex_);
    ++malformed_;
  }

  void on_end(const HeartbeatConnectionPtr& connection, const error& reason) override {
    const NodeId id = connection->peer();
    const auto found = peers_.find(id);
    if (found == peers_.end()) {
      return;
    }
    Peer& peer = found->second;
    const auto mine = std::find(peer.connections.begin(), peer.connections.end(), connection);
    if (mine == peer.connections.end()) {
      return;  // Of an earlier record of this peer.
    }
    peer.connections.erase(mine);
    const bool was_current = peer.current == connection;
    if (was_current) {
      peer.current = nullptr;
      set_connected(id, false);
    }
    if (peer.connections.empty()) {
      executor.cancel(peer.tick);
      peer.tick = 0;
      if (peer.watched) {
        redial_later(id);
      } else if (!peer.dialling) {
        const std::lock_guard lock(mutex_);
        records_.erase(id);
        peers_.erase(found);
      }
    }
    if (was_current && config_.on_change) {
      config_.on_change(id, false, reason);
    }
  }

  Executor& executor;

 private:
  Peer& obtain(const NodeId& id) {
    const auto [position, added] = peers_.try_emplace(id);
    if (added) {
      const std::lock_guard lock(mutex_);
      records_.emplace(id, Record{config_.phi});
    }
    return position->second;
  }

  void set_connected(const NodeId& id, bool connected) {
    const std::lock_guard lock(mutex_);
    HeartbeatStats& stats = records_.at(id).stats;
    stats.connected = connected;
    stats.connects += connected ? 1U : 0U;
  }

  // -- dialling -----------------------------------------------------------------------------------

  void dial_if_needed(const NodeId& id) {
    Peer& peer = peers_.at(id);
    if (peer.dialling || !peer.connections.empty() || peer.address.empty()) {
      return;
    }
    executor.cancel(peer.redial);
    peer.redial = 0;
    peer.dialling = true;
    peer.dial = ++dials_;
    transport_.dial(peer.address, StreamPurpose::heartbeat, config_.dial_timeout,
                    [weak = weak_from_this(), id, number = peer.dial](expected<OpenStream> open) {
                      if (const auto core = weak.lock()) {
                        core->dialled(id, number, std::move(open));
                      } else if (open) {
                        open->stream->close(error{ec::closed, "heartbeat: stopped"});
                      }
                    });
  }

  void dialled(const NodeId& id, std::uint64_t number, expected<OpenStream> open) {
    const auto found = peers_.find(id);
    if (found == peers_.end() || found->second.dial != number) {
      if (open) {
        open->stream->close(error{ec::closed, "heartbeat: the node is no longer watched"});
      }
      return;
    }
    found->second.dialling = false;
    if (open && open->peer != id) {
      open->stream->close(
          error{ec::conflict, "heartbeat: another node answers at " + found->second.address});
      redial_later(id);
    } else if (open) {
      add(id, std::move(*open), true);
    } else {
      redial_later(id);
    }
  }

  void redial_later(const NodeId& id) {
    Peer& peer = peers_.at(id);
    if (!peer.watched || peer.dialling || peer.redial != 0 || !peer.connections.empty() ||
        peer.address.empty()) {
      return;
    }
    peer.backoff = std::clamp(peer.backoff * 2, config_.backoff_first, config_.backoff_most);
    const double factor = 0.5 + random_.uniform();
    const Duration wait{
        static_cast<Duration::rep>(static_cast<double>(peer.backoff.count()) * factor)};
    peer.redial = executor.schedule(wait, [weak = weak_from_this(), id] {
      const auto core = weak.lock();
      if (core && core->peers_.count(id) != 0) {
        core->peers_.at(id).redial = 0;
        core->dial_if_needed(id);
      }
    });
  }

  // -- connections --------------------------------------------------------------------------------

  void add(const NodeId& id, OpenStream open, bool dialled_here) {
    Peer& peer = obtain(id);
    if (peer.connections.size() >= connections_per_peer) {
      open.stream->close(error{ec::limit_exceeded, "heartbeat: too many connections of one node"});
      return;
    }
    auto connection = std::make_shared<HeartbeatConnection>(
        weak_from_this(), executor, std::move(open), dialled_here, config_.frames_per_second);
    peer.connections.push_back(connection);
    connection->start();
    send_ping(connection);
    if (peer.tick == 0) {
      schedule_tick(id, peer);
    }
  }

  void send_ping(const HeartbeatConnectionPtr& connection) {
    if (connection->ping()) {
      const std::lock_guard lock(mutex_);
      ++records_.at(connection->peer()).stats.pings_sent;
    }
  }

  void schedule_tick(const NodeId& id, Peer& peer) {
    peer.tick = executor.schedule(config_.interval, [weak = weak_from_this(), id] {
      if (const auto core = weak.lock()) {
        core->tick(id);
      }
    });
  }

  void tick(const NodeId& id) {
    const auto found = peers_.find(id);
    if (found == peers_.end()) {
      return;
    }
    const TimePoint now = executor.now();
    for (const auto& connection : found->second.connections) {
      if (now - connection->heard() >= config_.silence) {
        connection->close(
            error{ec::timeout, "heartbeat: nothing heard of " + short_string(id) + " in time"});
      } else {
        send_ping(connection);
      }
    }
    schedule_tick(id, found->second);
  }

  /// A valid frame arrived on `connection`: decides whether it is the one to keep. False when it is
  /// not (any more).
  bool alive(const HeartbeatConnectionPtr& connection) {
    const NodeId id = connection->peer();
    const auto found = peers_.find(id);
    if (found == peers_.end()) {
      return false;
    }
    Peer& peer = found->second;
    if (peer.current == connection) {
      return true;
    }
    if (std::find(peer.connections.begin(), peer.connections.end(), connection) ==
        peer.connections.end()) {
      return false;
    }
    const HeartbeatConnectionPtr old = peer.current;
    if (old && !old->closing() && !replaces(id, *connection, *old)) {
      connection->close(error{ec::duplicate, "heartbeat: there is a connection already"});
      return false;
    }
    peer.current = connection;
    peer.backoff = Duration{0};
    if (old) {
      old->close(error{ec::duplicate, "heartbeat: replaced by another connection"});
      set_connected(id, true);
      return true;
    }
    set_connected(id, true);
    if (config_.on_change) {
      config_.on_change(id, true, error{});
    }
    return peers_.count(id) != 0;
  }

  /// Both nodes come to the same answer: the dial of the smaller id stays; of two dials of the same
  /// node the newer one; but a connection that has gone silent yields to any that speaks.
  bool replaces(const NodeId& id, const HeartbeatConnection& fresh,
                const HeartbeatConnection& old) const {
    if (executor.now() - old.heard() > config_.interval * 2) {
      return true;
    }
    if (fresh.dialled() == old.dialled()) {
      return true;
    }
    return fresh.dialled() == (self_ < id);
  }

  HeartbeatConfig config_;
  Transport& transport_;
  NodeId self_;
  PhiloxStream random_;
  bool stopped_ = false;
  std::uint64_t dials_ = 0;
  std::map<NodeId, Peer> peers_;

  mutable std::mutex mutex_;
  std::map<NodeId, Record> records_;
  std::uint64_t malformed_ = 0;
};

Heartbeats::Heartbeats(Transport& transport, NodeId self, HeartbeatConfig config)
    : core_(std::make_shared<Core>(transport, self, std::move(config))) {}

Heartbeats::~Heartbeats() { stop(); }

void Heartbeats::watch(NodeId peer, std::string address) {
  core_->executor.post([core = core_, peer, address = std::move(address)]() mutable {
    core->watch(peer, std::move(address));
  });
}

void Heartbeats::accept(OpenStream open) {
  core_->executor.post([core = core_, open = std::move(open)] { core->accept(open); });
}

void Heartbeats::forget(NodeId peer) {
  core_->executor.post([core = core_, peer] { core->forget(peer); });
}

void Heartbeats::stop() {
  core_->executor.post([core = core_] { core->stop(); });
}

std::optional<HeartbeatStats> Heartbeats::stats(const NodeId& peer) const {
  return core_->stats(peer);
}

std::vector<NodeId> Heartbeats::peers() const { return core_->peers(); }

std::uint64_t Heartbeats::malformed() const { return core_->malformed(); }

}  // namespace troupe::net
