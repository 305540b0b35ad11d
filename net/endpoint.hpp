// Why: one port per node serves everybody: HTTP for people, WebSocket for browsers and foreign
// clients, and the upgrade to the project's own frames for peers. Nothing a stranger sends costs
// the node more than that stranger's connection.
// Thread-safety: every member may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "net/asio_executor.hpp"
#include "net/error.hpp"
#include "net/http.hpp"
#include "net/node_id.hpp"
#include "net/stream.hpp"
#include "net/tcp_stream.hpp"
#include "net/tls.hpp"

namespace troupe::net {

struct EndpointConfig {
  NodeId node;
  std::string cluster;
  std::shared_ptr<const TlsContext> tls;  ///< null: plaintext
  bool insecure = false;                  ///< listen off loopback without TLS
  HttpLimits limits;
};

/// A peer that has passed the upgrade; the 101 has been sent.
struct PeerArrival {
  DetachedSocket socket;
  NodeId node;
  StreamPurpose purpose = StreamPurpose::link;
};

struct EndpointCounters {
  std::uint64_t accepted = 0;
  std::uint64_t turned_away = 0;    ///< closed at once: too many unauthenticated connections
  std::uint64_t requests = 0;       ///< answered HTTP requests
  std::uint64_t bad_requests = 0;   ///< 4xx by the server itself, broken TLS, deadlines
  std::uint64_t peers = 0;          ///< upgrades that succeeded
  std::uint64_t peers_refused = 0;  ///< upgrades that did not
  std::uint64_t open_unauthenticated = 0;
  std::uint64_t open_websockets = 0;
};

class Endpoint {
 public:
  /// Runs on `executor`. `/livez` answers "ok" from the start.
  Endpoint(std::shared_ptr<AsioExecutor> executor, EndpointConfig config);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// Binds "host:port" ("127.0.0.1:0", "[::1]:4000", "node7:4000") and accepts. Blocks for the name
  /// look-up. invalid_argument when `check_listen_policy` says so, system_error when it cannot
  /// bind.
  expected<void> listen(const std::string& address);

  /// Accepts nobody any more. Connections live on until the executor stops.
  void stop_listening();

  /// "127.0.0.1:40123": the numeric address with the bound port; empty before `listen`.
  std::string address() const;
  std::uint16_t port() const;

  /// Where peers go. Called on the executor's thread. Set before `listen`.
  void on_peer(std::function<void(PeerArrival)> handler);

  /// `path` matches exactly, or as a prefix when it ends in "/*" (the longest match wins). GET also
  /// serves HEAD. A route added twice replaces the first.
  void add_route(const std::string& method, const std::string& path, HttpHandler handler);
  void add_async_route(const std::string& method, const std::string& path,
                       AsyncHttpHandler handler);

  /// Calls `handler` on the executor's thread for each WebSocket opened at exactly `path`. Browsers
  /// must come from the same origin (Origin must name the Host).
  void on_websocket(const std::string& path, WebSocketHandler handler);

  EndpointCounters counters() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};

/// Splits "host:port" or "[v6]:port".
expected<HostPort> parse_address(std::string_view address);

/// Without TLS a node listens on loopback only, unless `insecure`. Looks names up (blocking).
expected<void> check_listen_policy(const std::string& address, bool tls, bool insecure);

}  // namespace troupe::net
