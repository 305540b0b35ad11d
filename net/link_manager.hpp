// Why: keeps the links of one node: dials and accepts, shakes hands, ends up with one link per peer
// whoever dialled whom, remakes broken connections within the grace time, and declares a link down when
// the peer's process is gone, the grace time is over or the peer has lost the session. It knows
// nothing of actors.
// Thread-safety: everything on the transport's link executor, except the members marked "any thread".
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "net/link.hpp"
#include "net/philox.hpp"
#include "net/stream.hpp"

namespace troupe::net {

struct LinkManagerConfig {
  NodeId self;
  std::string name;     ///< label of this node, for logs
  std::string cluster;  ///< only nodes of the same cluster are linked
  std::string build;    ///< version and commit, for logs
  std::string address;  ///< where peers can dial this node; empty: nowhere
  std::uint32_t version_min = protocol_version_min;
  std::uint32_t version_max = protocol_version_max;
  Duration dial_timeout = std::chrono::seconds{5};
  Duration handshake_timeout = std::chrono::seconds{5};
  Duration redial_min = std::chrono::milliseconds{10};
  Duration redial_max = std::chrono::milliseconds{500};
  /// A connection on which frames wait for an acknowledgement this long without any progress is given
  /// up and remade (half-open connections; a stopped peer looks alike).
  Duration stall_timeout = std::chrono::seconds{15};
  /// After a loss the side that did not dial waits this long before it dials too.
  Duration other_side_delay = std::chrono::milliseconds{25};
  /// A refused connection means that the peer's process is gone (its listener lives as long as it).
  bool refused_means_gone = true;
  std::size_t max_handshakes = 1024;  ///< incoming connections in the handshake at a time
  std::size_t max_unreached = 256;    ///< links to nodes that were named but never reached
  std::uint64_t seed = 0;             ///< of jitter and session numbers; 0: drawn from the node id
  LinkConfig link;
};

class Connection;

/// Told about links. Called on the executor's thread.
class LinkObserver {
 public:
  virtual ~LinkObserver() = default;

  /// A link to a new peer is being made: who handles its records?
  virtual std::shared_ptr<LinkHandler> make_handler(const std::shared_ptr<Link>& link) = 0;

  /// The first connection of a link is established. `peer` is its Hello.
  virtual void on_link_up(const std::shared_ptr<Link>& link, const Hello& peer) = 0;

  /// A heartbeat connection came in; without a taker it is closed. Called on the heartbeat executor.
  virtual void on_heartbeat_stream(OpenStream stream) {
    const auto refused = std::move(stream.stream);
    refused->close({});
  }
};

class LinkManager : public std::enable_shared_from_this<LinkManager> {
 public:
  using ConnectHandler = std::function<void(expected<NodeId>)>;

  LinkManager(Transport& transport, LinkManagerConfig config, LinkObserver& observer);
  ~LinkManager();
  LinkManager(const LinkManager&) = delete;
  LinkManager& operator=(const LinkManager&) = delete;

  /// Installs the accept handler. Any thread, once, after construction in a shared_ptr.
  void start();

  /// Where peers can dial this node, once the listener's port is known. Any thread, before the first
  /// connection.
  void set_address(std::string address);

  /// Links to the node at `address`. `done` is called once, on the executor, within the dial and
  /// handshake timeouts. Any thread.
  void connect(std::string address, ConnectHandler done);

  /// The link to `peer`, made and dialled at `address` when there is none. The link is returned at once
  /// and takes records; when the peer cannot be reached within the grace time it goes down. Null when
  /// `max_unreached` links are waiting for their first connection already.
  std::shared_ptr<Link> open(const NodeId& peer, const std::string& address);

  /// The link to `peer`, or null.
  std::shared_ptr<Link> find(const NodeId& peer) const;

  /// The address at which `peer` says it can be dialled, or empty.
  std::string address_of(const NodeId& peer) const;

  /// Breaks the connection to `peer` as the network would; it is remade. For fault tests.
  void drop_connection(const NodeId& peer);

  /// Ends the link to `peer`.
  void disconnect(const NodeId& peer, const error& reason);

  /// Says goodbye to all peers and ends all links. Later calls to `connect` fail.
  void stop(const error& reason);

  std::size_t link_count() const noexcept { return peers_.size(); }

 private:
  friend class Connection;
  struct Peer;

  void on_accept(OpenStream opened);
  void start_dial(const NodeId& wanted, const std::string& address, ConnectHandler done);
  void on_dialled(const NodeId& wanted, expected<OpenStream> opened, ConnectHandler done);
  void on_dial_failed(const NodeId& wanted, const error& reason, ConnectHandler done);
  Peer& ensure_peer(const NodeId& id);
  Peer* find_peer(const NodeId& id) const;
  Hello base_hello() const;

  /// Both: decide about the session and attach, or say why not. `admit` also sends the welcome.
  expected<std::shared_ptr<Link>> admit(Connection& connection, const Hello& hello);
  expected<std::shared_ptr<Link>> on_welcome(Connection& connection, const Hello& hello);
  error attach(Peer& peer, Connection& connection, const Hello& hello, std::uint64_t number,
               const NodeId& initiator);

  void on_connection_lost(const NodeId& id, const Stream* stream, const error& reason);
  void on_handshake_failed(const NodeId& id, const std::string& address, const error& reason,
                           ConnectHandler done);
  void arm_grace(Peer& peer);
  void arm_stall_check(Peer& peer);
  void schedule_redial(Peer& peer, Duration delay);
  void retry_later(Peer& peer);
  void fail_peer(const NodeId& id, const error& reason);
  void forget(const Connection* connection);
  std::uint64_t draw();

  Transport& transport_;
  Executor& executor_;
  LinkManagerConfig config_;
  LinkObserver& observer_;
  PhiloxStream random_;
  std::map<NodeId, std::unique_ptr<Peer>> peers_;
  std::map<const Connection*, std::weak_ptr<Connection>> handshakes_;
  bool stopped_ = false;
};

}  // namespace troupe::net
