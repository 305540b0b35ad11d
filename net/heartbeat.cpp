#include "net/heartbeat.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "net/heartbeat_connection.hpp"
#include "net/heartbeat_record.hpp"
#include "net/philox.hpp"

namespace troupe::net {

namespace {

constexpr std::uint32_t jitter_role = 0x48425254U;
/// Connections to one peer at a time: one each way, and one that replaces a dead one.
constexpr std::size_t connections_per_peer = 3;
/// An answer travels with the next ping when that is due within this, else on its own.
constexpr Duration longest_hold = std::chrono::milliseconds{500};
/// Ticks of all processes on a host fall on a grid of this many points per interval: those that wake
/// at the same point share what waking a processor costs (measured in docs/heartbeats.md).
constexpr int ticks_grid = 16;
/// A lost connection is dialled anew within this, so that a killed process is soon seen to be gone.
constexpr Duration quick_redial = std::chrono::milliseconds{10};
/// A tick that comes later than this and than an interval: this process stood still.
constexpr Duration stood_still_for = std::chrono::milliseconds{250};

struct Peer {
  std::string address;
  bool watched = false;
  bool dialling = false;
  /// Number of the last dial; the answer to an older one is not wanted any more.
  std::uint64_t dial = 0;
  /// Why the last dial failed.
  std::string problem;
  std::vector<HeartbeatConnectionPtr> connections;
  HeartbeatConnectionPtr current;
  TimerId redial = 0;
  Duration backoff{0};
  /// No quick dial before this: a peer that takes connections and drops them is not hammered.
  TimePoint next_quick;
  /// From when on silence counts.
  TimePoint quiet_since;
  std::optional<HeartbeatVerdict> verdict;
  /// Under the core's mutex.
  HeartbeatRecord* record = nullptr;
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
    if (peer.watched && peer.address == address) {
      return;
    }
    if (!peer.watched) {
      peer.watched = true;
      peer.quiet_since = executor.now();
    }
    // What a dial to the address before comes to says nothing about this one.
    peer.dialling = false;
    peer.dial = ++dials_;
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
    executor.cancel(tick_);
    tick_ = 0;
  }

  void allow(std::function<bool(const NodeId&)> allow) { config_.allow = std::move(allow); }

  /// Any thread: what `is_watched` tells, ahead of the executor.
  void want(const NodeId& id, bool wanted) {
    const std::lock_guard lock(mutex_);
    if (!wanted) {
      wanted_.erase(id);
    } else if (!closed_ && id != self_) {
      wanted_.insert(id);
    }
  }

  void want_none() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    wanted_.clear();
  }

  bool wanted(const NodeId& id) const {
    const std::lock_guard lock(mutex_);
    return wanted_.count(id) != 0;
  }

  std::optional<HeartbeatStats> stats(const NodeId& id) const {
    const TimePoint now = executor.now();
    const std::lock_guard lock(mutex_);
    const auto found = records_.find(id);
    if (found == records_.end()) {
      return std::nullopt;
    }
    return found->second.summary(now, config_.interval);
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

  void on_heard(const HeartbeatConnectionPtr& connection, const HeartbeatHeard& heard) override {
    if (!alive(connection)) {
      return;
    }
    Peer& peer = peers_.at(connection->peer());
    const TimePoint now = executor.now();
    const bool pinged = heard.ping && reply(*connection, now);
    {
      const std::lock_guard lock(mutex_);
      HeartbeatRecord& record = *peer.record;
      record.stats.last_heard = now;
      if (heard.ping) {
        record.note_ping(now, connection->pings_heard());
      }
      if (heard.answer) {
        record.note_answer(heard);
      }
      record.stats.pings_sent += pinged ? 1U : 0U;
    }
    if (peer.verdict != HeartbeatVerdict::alive) {
      report(connection->peer(), peer, HeartbeatVerdict::alive, "heard again");
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
      if (peer.watched) {
        redial_lost(id, peer, was_current);
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
      position->second.record = &records_.emplace(id, HeartbeatRecord{config_.phi}).first->second;
    }
    if (tick_ == 0) {
      tick_due_ = executor.now();
      tick_due_ -= tick_due_.time_since_epoch() % (config_.interval / ticks_grid);
      schedule_tick();
    }
    return position->second;
  }

  /// A ping is answered with a ping of our own when that is due soon: then the answer, both pings and
  /// TCP's acknowledgement need one packet each way, and this process need not wake again for them.
  /// True when a ping went out.
  bool reply(HeartbeatConnection& connection, TimePoint now) {
    if (ping_due(connection, now)) {
      return connection.ping();
    }
    // The first answer is not held back: whoever has just joined wants to be confirmed.
    if (connection.pings_heard() == 1 || tick_due_ - now > longest_hold) {
      connection.answer();
    }
    return false;
  }

  bool ping_due(const HeartbeatConnection& connection, TimePoint now) const {
    return now - connection.pinged() >= config_.interval / 2;
  }

  // -- verdicts -----------------------------------------------------------------------------------

  void report(const NodeId& id, Peer& peer, HeartbeatVerdict verdict, const std::string& reason) {
    if (!peer.watched || peer.verdict == verdict) {
      return;
    }
    const bool first = !peer.verdict;
    peer.verdict = verdict;
    if (config_.on_verdict) {
      config_.on_verdict(id, verdict,
                         first && verdict == HeartbeatVerdict::alive ? "heard" : reason);
    }
  }

  /// Whether a watched peer has been silent for too long. Who is gone stays so until it is heard.
  void judge(const NodeId& id, Peer& peer, TimePoint now) {
    if (!peer.watched || (peer.verdict && *peer.verdict != HeartbeatVerdict::alive)) {
      return;
    }
    std::string suspicion;
    {
      const std::lock_guard lock(mutex_);
      suspicion = peer.record->suspicion(now, peer.quiet_since, config_);
    }
    if (!suspicion.empty()) {
      const bool cannot_dial = peer.connections.empty() && !peer.problem.empty();
      report(id, peer, HeartbeatVerdict::suspect,
             suspicion + (cannot_dial ? " (" + peer.problem + ")" : ""));
    }
  }

  /// This node itself stood still: what it has not heard meanwhile says nothing about its peers.
  void forgive(Peer& peer, TimePoint now) {
    peer.quiet_since = now;
    const std::lock_guard lock(mutex_);
    if (peer.record->stats.pings_received > 0) {
      peer.record->phi.restart(now);
    }
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
    Peer& peer = found->second;
    peer.dialling = false;
    if (open && open->peer == id) {
      peer.problem.clear();
      add(id, std::move(*open), true);
      return;
    }
    const bool refused = !open && open.error().code() == ec::refused;
    if (open) {
      peer.problem = "another node answers at " + peer.address;
      open->stream->close(error{ec::conflict, "heartbeat: " + peer.problem});
    } else {
      peer.problem = refused ? "nothing listens at " + peer.address : open.error().text();
    }
    // A connection that the peer has dialled meanwhile proves more than its address does.
    if ((open || refused) && peer.connections.empty()) {
      report(id, peer, HeartbeatVerdict::gone, peer.problem + (refused ? " any more" : ""));
    }
    redial_later(id);
  }

  /// The first dial after a connection that worked comes at once, the others with back-off.
  void redial_lost(const NodeId& id, Peer& peer, bool worked) {
    const TimePoint now = executor.now();
    if (!worked || now < peer.next_quick) {
      redial_later(id);
      return;
    }
    peer.next_quick = now + config_.interval;
    redial_in(id, Duration{static_cast<Duration::rep>(
                      random_.below(static_cast<std::uint64_t>(quick_redial.count())))});
  }

  void redial_later(const NodeId& id) {
    Peer& peer = peers_.at(id);
    peer.backoff = std::clamp(peer.backoff * 2, config_.backoff_first, config_.backoff_most);
    const double factor = 0.5 + random_.uniform();
    const Duration wait{
        static_cast<Duration::rep>(static_cast<double>(peer.backoff.count()) * factor)};
    redial_in(id, wait);
  }

  void redial_in(const NodeId& id, Duration wait) {
    Peer& peer = peers_.at(id);
    if (!peer.watched || peer.dialling || peer.redial != 0 || !peer.connections.empty() ||
        peer.address.empty()) {
      return;
    }
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
    if (connection->ping()) {
      const std::lock_guard lock(mutex_);
      ++peer.record->stats.pings_sent;
    }
  }

  // -- the tick: one timer for all peers ----------------------------------------------------------

  /// Keeps the rhythm, whatever the work takes; ticks that were missed are left out.
  void schedule_tick() {
    const TimePoint now = executor.now();
    tick_due_ += config_.interval;
    if (tick_due_ <= now) {
      tick_due_ = now + config_.interval;
    }
    tick_ = executor.schedule(tick_due_ - now, [weak = weak_from_this()] {
      if (const auto core = weak.lock()) {
        core->tick();
      }
    });
  }

  void tick() {
    tick_ = 0;
    if (peers_.empty()) {
      return;  // The next peer starts it again.
    }
    const TimePoint now = executor.now();
    const bool stood_still = now - tick_due_ > std::max(config_.interval, stood_still_for);
    for (auto& [id, peer] : peers_) {
      send_pings(peer, now, stood_still ? TimePoint::min() : now - config_.silence);
      if (stood_still) {
        forgive(peer, now);
      } else {
        judge(id, peer, now);
      }
    }
    schedule_tick();
  }

  /// Pings on the connections that were heard after `oldest`, and closes the others.
  void send_pings(Peer& peer, TimePoint now, TimePoint oldest) {
    std::uint64_t sent = 0;
    for (const auto& connection : peer.connections) {
      if (connection->heard() <= oldest) {
        connection->close(error{ec::timeout, "heartbeat: nothing heard of " +
                                                 short_string(connection->peer()) + " in time"});
      } else if (ping_due(*connection, now) && connection->ping()) {
        ++sent;
      }
    }
    if (sent > 0) {
      const std::lock_guard lock(mutex_);
      peer.record->stats.pings_sent += sent;
    }
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
  TimerId tick_ = 0;
  TimePoint tick_due_;

  mutable std::mutex mutex_;
  std::map<NodeId, HeartbeatRecord> records_;
  std::uint64_t malformed_ = 0;
  std::set<NodeId> wanted_;
  bool closed_ = false;
};

Heartbeats::Heartbeats(Transport& transport, NodeId self, HeartbeatConfig config)
    : core_(std::make_shared<Core>(transport, self, std::move(config))) {}

Heartbeats::~Heartbeats() { stop(); }

void Heartbeats::watch(NodeId peer, std::string address) {
  core_->want(peer, true);
  core_->executor.post([core = core_, peer, address = std::move(address)]() mutable {
    core->watch(peer, std::move(address));
  });
}

void Heartbeats::accept(OpenStream open) {
  core_->executor.post([core = core_, open = std::move(open)] { core->accept(open); });
}

void Heartbeats::forget(NodeId peer) {
  core_->want(peer, false);
  core_->executor.post([core = core_, peer] { core->forget(peer); });
}

bool Heartbeats::is_watched(const NodeId& peer) const { return core_->wanted(peer); }

void Heartbeats::set_allow(std::function<bool(const NodeId&)> allow) {
  core_->executor.post(
      [core = core_, allow = std::move(allow)]() mutable { core->allow(std::move(allow)); });
}

void Heartbeats::stop() {
  core_->want_none();
  core_->executor.post([core = core_] { core->stop(); });
}

std::optional<HeartbeatStats> Heartbeats::stats(const NodeId& peer) const {
  return core_->stats(peer);
}

std::vector<NodeId> Heartbeats::peers() const { return core_->peers(); }

std::uint64_t Heartbeats::malformed() const { return core_->malformed(); }

}  // namespace troupe::net
