// Why: what the connections of an endpoint share: configuration, routes, counters. A connection
// keeps it alive, so that the order in which endpoint and connections end does not matter.
// Thread-safety: stated per member. Internal to net/.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "net/endpoint.hpp"

namespace troupe::net {

inline constexpr std::string_view peer_path = "/peer";
inline constexpr std::string_view peer_protocol = "troupe/1";

struct EndpointCore {
  /// Exactly one of the two is set.
  struct Route {
    HttpHandler handler;
    AsyncHttpHandler async_handler;
  };

  std::shared_ptr<AsioExecutor> executor;
  EndpointConfig config;

  struct Counters {
    std::atomic<std::uint64_t> accepted{0};
    std::atomic<std::uint64_t> turned_away{0};
    std::atomic<std::uint64_t> requests{0};
    std::atomic<std::uint64_t> bad_requests{0};
    std::atomic<std::uint64_t> peers{0};
    std::atomic<std::uint64_t> peers_refused{0};
    std::atomic<std::uint64_t> unauthenticated{0};
    std::atomic<std::uint64_t> websockets{0};
  } counters;

  struct Found {
    Route route;
    std::string allowed;  ///< when the path exists, but not for this method: "GET, POST"
    bool path_exists = false;
  };

  /// Any thread.
  void add(const std::string& method, const std::string& path, Route route);
  Found find(std::string_view method, std::string_view path) const;
  WebSocketHandler find_websocket(std::string_view path) const;
  std::function<void(PeerArrival)> peer_handler() const;

  /// One line for the log at level warn, at most ten a second: a stranger must not fill the disk.
  /// Loop thread only.
  void log_refusal(const std::string& text);

  mutable std::mutex mutex;                                                // guards what follows
  std::map<std::string, std::map<std::string, Route>, std::less<>> exact;  // path -> method
  std::map<std::string, std::map<std::string, Route>, std::less<>> prefixes;
  std::map<std::string, WebSocketHandler, std::less<>> websockets;
  std::function<void(PeerArrival)> on_peer;

 private:
  TimePoint log_second_{};
  unsigned logged_ = 0;
  std::uint64_t unlogged_ = 0;
};

/// Counts one connection as unauthenticated while it lives.
class UnauthenticatedSlot {
 public:
  UnauthenticatedSlot() = default;
  explicit UnauthenticatedSlot(std::shared_ptr<EndpointCore> core) : core_(std::move(core)) {
    ++core_->counters.unauthenticated;
  }
  UnauthenticatedSlot(UnauthenticatedSlot&&) = default;
  UnauthenticatedSlot& operator=(UnauthenticatedSlot&& other) noexcept {
    core_.swap(other.core_);
    return *this;
  }
  UnauthenticatedSlot(const UnauthenticatedSlot&) = delete;
  UnauthenticatedSlot& operator=(const UnauthenticatedSlot&) = delete;
  ~UnauthenticatedSlot() { release(); }

  void release() {
    if (core_) {
      --core_->counters.unauthenticated;
      core_.reset();
    }
  }

 private:
  std::shared_ptr<EndpointCore> core_;
};

}  // namespace troupe::net
