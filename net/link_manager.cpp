#include "net/link_manager.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "net/connection.hpp"

namespace troupe::net {

struct LinkManager::Peer {
  NodeId id;
  std::shared_ptr<Link> link;
  std::string address;  // where it can be dialled, empty if nowhere
  std::weak_ptr<Connection> connection;
  std::vector<ConnectHandler> waiters;  // for the first connection
  bool up = false;                      // has ever been connected
  bool dialling = false;
  unsigned attempts = 0;
  TimerId grace_timer = 0;
  TimerId redial_timer = 0;
  TimerId stall_timer = 0;
  error last_error;
};

LinkManager::LinkManager(Transport& transport, LinkManagerConfig config, LinkObserver& observer)
    : transport_(transport),
      executor_(transport.executor(StreamPurpose::link)),
      config_(std::move(config)),
      observer_(observer),
      random_(config_.seed != 0 ? config_.seed : config_.self.low()) {}

LinkManager::~LinkManager() = default;

void LinkManager::start() {
  transport_.on_accept([weak = weak_from_this(), this](OpenStream opened) {
    const auto self = weak.lock();
    if (!self) {
      opened.stream->close({ec::closed, "this node is shutting down"});
    } else if (opened.purpose == StreamPurpose::heartbeat) {
      observer_.on_heartbeat_stream(std::move(opened));
    } else {
      on_accept(std::move(opened));
    }
  });
}

void LinkManager::set_address(std::string address) {
  executor_.post([weak = weak_from_this(), address = std::move(address)]() mutable {
    if (auto self = weak.lock()) {
      self->config_.address = std::move(address);
    }
  });
}

std::uint64_t LinkManager::draw() {
  const std::uint64_t high = random_();
  return (high << 32U) | random_() | 1U;
}

LinkManager::Peer* LinkManager::find_peer(const NodeId& id) const {
  const auto it = peers_.find(id);
  return it == peers_.end() ? nullptr : it->second.get();
}

LinkManager::Peer& LinkManager::ensure_peer(const NodeId& id) {
  auto& slot = peers_[id];
  if (!slot) {
    slot = std::make_unique<Peer>();
    slot->id = id;
    slot->link = std::make_shared<Link>(executor_, config_.link, config_.self, id, draw());
    slot->link->set_handler(observer_.make_handler(slot->link));
    arm_grace(*slot);
  }
  return *slot;
}

Hello LinkManager::base_hello() const {
  Hello hello;
  hello.version_min = config_.version_min;
  hello.version_max = config_.version_max;
  hello.cluster = config_.cluster;
  hello.node = config_.self;
  hello.name = config_.name;
  hello.build = config_.build;
  hello.address = config_.address;
  return hello;
}

// -- dialling ------------------------------------------------------------------------------------------

void LinkManager::connect(std::string address, ConnectHandler done) {
  executor_.post([weak = weak_from_this(), address = std::move(address), done = std::move(done)] {
    const auto self = weak.lock();
    if (!self || self->stopped_) {
      done(fail(ec::closed, "this node is shutting down"));
      return;
    }
    self->start_dial({}, address, done);
  });
}

std::shared_ptr<Link> LinkManager::open(const NodeId& id, const std::string& address) {
  if (find_peer(id) == nullptr) {
    // Peers name nodes in messages: a hostile one must not make this node dial without end.
    const auto unreached = std::count_if(peers_.begin(), peers_.end(),
                                         [](const auto& entry) { return !entry.second->up; });
    if (stopped_ || static_cast<std::size_t>(unreached) >= config_.max_unreached) {
      return nullptr;
    }
  }
  Peer& peer = ensure_peer(id);
  if (peer.address.empty()) {
    peer.address = address;
  }
  if (!peer.up && !peer.dialling && peer.redial_timer == 0) {
    schedule_redial(peer, Duration{0});
  }
  return peer.link;
}

std::shared_ptr<Link> LinkManager::find(const NodeId& id) const {
  const Peer* peer = find_peer(id);
  return peer != nullptr ? peer->link : nullptr;
}

std::string LinkManager::address_of(const NodeId& id) const {
  const Peer* peer = find_peer(id);
  return peer != nullptr ? peer->address : std::string{};
}

void LinkManager::start_dial(const NodeId& wanted, const std::string& address,
                             ConnectHandler done) {
  transport_.dial(address, StreamPurpose::link, config_.dial_timeout,
                  [weak = weak_from_this(), wanted, address,
                   done = std::move(done)](expected<OpenStream> opened) {
                    if (auto self = weak.lock()) {
                      if (opened) {
                        spdlog::debug("dialled {}: node {}", address, short_string(opened->peer));
                      }
                      if (opened && !wanted) {
                        // Remembers the address for the redial.
                        if (opened->peer != self->config_.self && !self->stopped_) {
                          self->ensure_peer(opened->peer).address = address;
                        }
                      }
                      self->on_dialled(wanted, std::move(opened), done);
                    } else if (opened) {
                      opened->stream->close({ec::closed, "this node is shutting down"});
                    }
                  });
}

void LinkManager::on_dialled(const NodeId& wanted, expected<OpenStream> opened,
                             ConnectHandler done) {
  if (Peer* peer = find_peer(wanted)) {
    peer->dialling = false;
  }
  if (!opened) {
    on_dial_failed(wanted, opened.error(), std::move(done));
    return;
  }
  const NodeId id = opened->peer;
  if (stopped_ || id == config_.self || (wanted && id != wanted)) {
    opened->stream->close({ec::handshake_refused, "not the node that was wanted"});
    if (stopped_) {
      on_dial_failed({}, {ec::closed, "this node is shutting down"}, std::move(done));
    } else if (id == config_.self) {
      on_dial_failed(wanted, {ec::handshake_refused, "the address belongs to this node itself"},
                     std::move(done));
    } else {
      fail_peer(wanted, {ec::node_unreachable, "node " + short_string(wanted) +
                                                   " is gone: its address now serves node " +
                                                   short_string(id)});
    }
    return;
  }
  if (wanted && find_peer(wanted) == nullptr) {
    opened->stream->close({ec::closed, "the link was ended in the meantime"});
    return;
  }
  Peer& peer = ensure_peer(id);
  peer.dialling = true;
  Hello hello = base_hello();
  peer.link->describe(hello);
  auto connection = std::make_shared<Connection>(weak_from_this(), executor_, std::move(*opened),
                                                 true, peer.address, std::move(done));
  handshakes_.emplace(connection.get(), connection);
  connection->start(hello, config_.handshake_timeout);
}

void LinkManager::on_dial_failed(const NodeId& wanted, const error& reason, ConnectHandler done) {
  if (done) {
    done(fail(reason));
  }
  Peer* peer = find_peer(wanted);
  if (peer == nullptr) {
    return;
  }
  peer->last_error = reason;
  if (peer->link->session().connected) {
    return;
  }
  if (reason == ec::refused && config_.refused_means_gone) {
    fail_peer(wanted, {ec::node_unreachable,
                       "node " + short_string(wanted) + " is gone: " + reason.text()});
  } else if (reason == ec::handshake_refused || reason == ec::unauthorized) {
    fail_peer(wanted, reason);
  } else {
    retry_later(*peer);
  }
}

void LinkManager::on_handshake_failed(const NodeId& id, const std::string& address,
                                      const error& reason, ConnectHandler done) {
  Peer* peer = find_peer(id);
  if (peer == nullptr || stopped_) {
    if (done) {
      done(fail(reason));
    }
    return;
  }
  peer->dialling = false;
  peer->last_error = reason;
  const bool connected = peer->link->session().connected;
  if (reason == ec::duplicate) {
    // The other connection serves the link, or is about to.
    if (connected && done) {
      done(id);
    } else if (done) {
      peer->waiters.push_back(std::move(done));
    }
    if (!connected && peer->up) {
      retry_later(*peer);
    }
    return;
  }
  if (reason == ec::session_lost) {
    fail_peer(id, {ec::node_unreachable, "node " + short_string(id) +
                                             " has ended the link on its side: " + reason.text()});
    if (done) {
      start_dial({}, address, std::move(done));
    }
    return;
  }
  const bool final = reason == ec::handshake_refused || reason == ec::unauthorized;
  if (done) {
    done(fail(reason));
  }
  if (connected) {
    return;
  }
  if (final || (!peer->up && peer->waiters.empty() && peer->address.empty())) {
    fail_peer(id, reason);
  } else {
    retry_later(*peer);
  }
}

void LinkManager::retry_later(Peer& peer) {
  if (peer.redial_timer != 0 || peer.dialling || peer.address.empty()) {
    return;
  }
  const unsigned doublings = std::min(peer.attempts++, 16U);
  const Duration base = std::min(config_.redial_min * (1U << doublings), config_.redial_max);
  // Half fixed, half jitter, so that two nodes do not dial in step.
  schedule_redial(peer, base / 2 + Duration{static_cast<Duration::rep>(random_.below(
                                       static_cast<std::uint64_t>(base.count() / 2 + 1)))});
}

void LinkManager::schedule_redial(Peer& peer, Duration delay) {
  if (peer.redial_timer != 0 || peer.address.empty()) {
    return;
  }
  peer.redial_timer = executor_.schedule(delay, [weak = weak_from_this(), id = peer.id] {
    const auto self = weak.lock();
    Peer* again = self ? self->find_peer(id) : nullptr;
    if (again == nullptr) {
      return;
    }
    again->redial_timer = 0;
    if (!again->dialling && !again->link->session().connected && !self->stopped_) {
      again->dialling = true;
      self->start_dial(id, again->address, nullptr);
    }
  });
}

// -- accepting -----------------------------------------------------------------------------------------

void LinkManager::on_accept(OpenStream opened) {
  if (stopped_ || handshakes_.size() >= config_.max_handshakes) {
    opened.stream->close({ec::limit_exceeded, "too many connections in the handshake"});
    return;
  }
  auto connection = std::make_shared<Connection>(weak_from_this(), executor_, std::move(opened),
                                                 false, std::string{}, nullptr);
  handshakes_.emplace(connection.get(), connection);
  connection->start(base_hello(), config_.handshake_timeout);
}

expected<std::shared_ptr<Link>> LinkManager::admit(Connection& connection, const Hello& hello) {
  if (stopped_) {
    return fail(ec::closed, "this node is shutting down");
  }
  const Peer* known = find_peer(hello.node);
  const SessionState state = known != nullptr ? known->link->session() : SessionState{};
  switch (judge_session(state, hello, hello.node)) {
    case SessionVerdict::stale:
      return fail(ec::session_lost, "the session is not known here (any more)");
    case SessionVerdict::duplicate:
      return fail(ec::duplicate, "another connection serves this link");
    case SessionVerdict::restart:
      fail_peer(hello.node, {ec::node_unreachable, "node " + short_string(hello.node) +
                                                       " has ended the link on its side"});
      break;
    case SessionVerdict::attach:
      break;
  }
  Peer& peer = ensure_peer(hello.node);
  const SessionState now = peer.link->session();
  std::uint64_t number = hello.connection;
  if (!now.connected || now.initiator == hello.node) {
    number = std::max(number, now.connection + 1);
  }
  Hello answer = base_hello();
  peer.link->describe(answer);
  answer.expects = hello.session;
  answer.connection = number;
  if (!connection.send_frame(hello_frame(FrameType::welcome, answer))) {
    return fail(ec::system_error, "the connection does not take the welcome");
  }
  if (auto err = attach(peer, connection, hello, number, hello.node)) {
    return fail(std::move(err));
  }
  return peer.link;
}

expected<std::shared_ptr<Link>> LinkManager::on_welcome(Connection& connection,
                                                        const Hello& hello) {
  Peer* peer = find_peer(hello.node);
  if (peer == nullptr) {
    return fail(ec::closed, "the link was ended during the handshake");
  }
  peer->dialling = false;
  switch (judge_session(peer->link->session(), hello, config_.self)) {
    case SessionVerdict::stale:
      return fail(ec::closed, "the peer answered for a session that has ended");
    case SessionVerdict::restart:
      return fail(ec::session_lost, "the peer has lost the session");
    case SessionVerdict::duplicate:
      return fail(ec::duplicate, "another connection serves this link");
    case SessionVerdict::attach:
      break;
  }
  if (auto err = attach(*peer, connection, hello, hello.connection, config_.self)) {
    return fail(std::move(err));
  }
  return peer->link;
}

error LinkManager::attach(Peer& peer, Connection& connection, const Hello& hello,
                          std::uint64_t number, const NodeId& initiator) {
  const bool first = !peer.up;
  peer.up = true;
  peer.attempts = 0;
  peer.connection = connection.weak_from_this();
  if (!hello.address.empty()) {
    peer.address = hello.address;
  }
  for (auto* timer : {&peer.grace_timer, &peer.redial_timer}) {
    if (*timer != 0) {
      executor_.cancel(std::exchange(*timer, 0));
    }
  }
  // The observer hears of the link before its first record can arrive.
  const auto link = peer.link;
  const NodeId id = peer.id;
  if (first) {
    spdlog::info("link with node {} \"{}\" is up ({}, {})", short_string(id), hello.name,
                 hello.build, connection.stream()->peer_address());
    observer_.on_link_up(link, hello);
  }
  if (auto err = link->attach(connection.stream(), hello, number, initiator)) {
    fail_peer(id, err);
    return err;
  }
  arm_stall_check(peer);
  auto waiters = std::exchange(peer.waiters, {});
  for (auto& waiter : waiters) {
    waiter(id);
  }
  return {};
}

// -- losses ----------------------------------------------------------------------------------------------

void LinkManager::on_connection_lost(const NodeId& id, const Stream* stream, const error& reason) {
  Peer* peer = find_peer(id);
  if (peer == nullptr || !peer->link->detach(stream)) {
    return;
  }
  spdlog::debug("connection with node {} lost: {}", short_string(id), to_string(reason));
  peer->last_error = reason;
  arm_grace(*peer);
  const bool own = peer->link->session().initiator == config_.self;
  schedule_redial(*peer, own ? Duration{0} : config_.other_side_delay);
}

void LinkManager::arm_grace(Peer& peer) {
  if (peer.grace_timer != 0) {
    return;
  }
  peer.grace_timer =
      executor_.schedule(config_.link.grace, [weak = weak_from_this(), id = peer.id] {
        const auto self = weak.lock();
        Peer* again = self ? self->find_peer(id) : nullptr;
        if (again == nullptr) {
          return;
        }
        again->grace_timer = 0;
        if (!again->link->session().connected) {
          const auto seconds = std::chrono::duration<double>(self->config_.link.grace).count();
          self->fail_peer(
              id, {ec::node_unreachable, "node " + short_string(id) + " could not be reached for " +
                                             std::to_string(seconds).substr(0, 5) +
                                             " s: " + again->last_error.text()});
        }
      });
}

void LinkManager::arm_stall_check(Peer& peer) {
  if (peer.stall_timer != 0) {
    return;
  }
  peer.stall_timer =
      executor_.schedule(config_.stall_timeout / 4, [weak = weak_from_this(), id = peer.id] {
        const auto self = weak.lock();
        Peer* again = self ? self->find_peer(id) : nullptr;
        if (again == nullptr) {
          return;
        }
        again->stall_timer = 0;
        const auto connection = again->connection.lock();
        if (connection && again->link->session().connected) {
          if (again->link->stalled_for() >= self->config_.stall_timeout) {
            connection->stream()->close({ec::timeout, "nothing was acknowledged for too long"});
          } else {
            self->arm_stall_check(*again);
          }
        }
      });
}

void LinkManager::fail_peer(const NodeId& id, const error& reason) {
  const auto it = peers_.find(id);
  if (it == peers_.end()) {
    return;
  }
  const auto peer = std::move(it->second);
  peers_.erase(it);
  for (const auto timer : {peer->grace_timer, peer->redial_timer, peer->stall_timer}) {
    if (timer != 0) {
      executor_.cancel(timer);
    }
  }
  if (peer->up) {
    const auto counters = peer->link->counters();
    spdlog::info(
        "link with node {} is down: {} (sent {} records in {} frames, received {} in {}, {} "
        "connections)",
        short_string(id), to_string(reason), counters.records_sent, counters.frames_sent,
        counters.records_received, counters.frames_received, counters.connections);
  }
  peer->link->fail(reason);
  for (auto& waiter : peer->waiters) {
    waiter(fail(reason));
  }
}

void LinkManager::drop_connection(const NodeId& id) {
  if (const Peer* peer = find_peer(id)) {
    if (const auto connection = peer->connection.lock()) {
      connection->stream()->close({ec::system_error, "connection dropped on request"});
    }
  }
}

void LinkManager::disconnect(const NodeId& id, const error& reason) {
  if (const Peer* peer = find_peer(id)) {
    const auto link = peer->link;
    link->say_goodbye(reason);
    fail_peer(id, reason);
  }
}

void LinkManager::stop(const error& reason) {
  stopped_ = true;
  while (!peers_.empty()) {
    disconnect(NodeId{peers_.begin()->first}, reason);
  }
  const auto handshakes = std::exchange(handshakes_, {});
  for (const auto& [key, weak] : handshakes) {
    if (const auto connection = weak.lock()) {
      connection->stream()->close(reason);
    }
  }
}

void LinkManager::forget(const Connection* connection) { handshakes_.erase(connection); }

}  // namespace troupe::net
