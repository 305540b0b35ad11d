// Why: a node that starts, or has lost its cluster, must find members whose addresses nobody can know
// for ever. Each search asks everything anew: names, DNS SRV records, a file, the local network.
// Thread-safety: every member of `Discovery` from any thread; a `LanResponder` is started, stopped and
// asked by one thread at a time. Handlers run on a thread of the discovery (of the
// caller with `static_discovery`), must not block, and may call `find`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/endpoint.hpp"
#include "net/error.hpp"
#include "net/executor.hpp"

namespace troupe::net {

class Discovery {
 public:
  /// `addresses`: "host:port" with numeric hosts, each once, in the order of the sources; this node's
  /// own may be among them. `problems`: a sentence for each source, or part of it, that failed.
  using Handler =
      std::function<void(std::vector<std::string> addresses, std::vector<std::string> problems)>;

  /// No handler runs after the destructor has returned, unless it destroys the discovery itself; it
  /// does not wait for look-ups.
  virtual ~Discovery() = default;

  /// Calls `handler` once, unless the discovery is destroyed before. Searches that come in during
  /// one are answered together by the next.
  virtual void find(Handler handler) = 0;
};

struct DiscoveryConfig {
  std::string cluster;
  /// Each is one of
  ///   "host:port"                            all addresses of the host; numeric ones as they are
  ///   "srv:_troupe._tcp.example.org"         DNS SRV: by priority, then weight
  ///   "file:/path"                           a "host:port" per line, # comments
  ///   "lan" or "lan:239.255.84.82:47474"     nodes of the cluster that answer a multicast
  std::vector<std::string> sources;
  /// A source that has not answered by then is a problem. It is not asked again before it has ended.
  Duration lookup_timeout = std::chrono::seconds{4};
  /// Answers from the local network are collected this long.
  Duration lan_wait = std::chrono::milliseconds{400};
  /// In place of the system's look-ups, for tests; may block, are called on several threads, and must
  /// hold what they need. `resolve`: numeric "ip:port"; `query_srv`: a DNS message.
  std::function<expected<std::vector<std::string>>(const HostPort& where)> resolve;
  std::function<expected<std::vector<std::byte>>(const std::string& name)> query_srv;
};

std::shared_ptr<Discovery> make_discovery(DiscoveryConfig config);

/// Always these addresses; calls the handler inside `find`.
std::shared_ptr<Discovery> static_discovery(std::vector<std::string> addresses);

/// Answers the multicast of nodes that look for this node's cluster. Whoever is on the local network
/// may ask and may answer: an address found so is a hint, TLS says who is there.
class LanResponder {
 public:
  LanResponder();
  /// Stops.
  ~LanResponder();
  LanResponder(const LanResponder&) = delete;
  LanResponder& operator=(const LanResponder&) = delete;

  /// `group`: "lan" or "lan:ip:port", as in the sources of those that search. An address whose host is
  /// 0.0.0.0 stands for the one that the answer comes from.
  expected<void> start(const std::string& cluster, const std::string& address,
                       const std::string& group = "lan");
  void stop();

  /// Queries that were answered, and packets that were not: garbage, other clusters, too many.
  std::uint64_t answered() const;
  std::uint64_t ignored() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace troupe::net
