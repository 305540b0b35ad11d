// Why: what the rest of the node sees of HTTP and WebSocket: plain values and functions, no Boost.
// Thread-safety: requests and responses are values; `HttpResponder` and `WebSocketSession` may be
// used from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "net/executor.hpp"

namespace troupe::net {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   ///< "GET", …
  std::string target;   ///< as received: "/api/runs/a%20b?limit=3"
  std::string path;     ///< decoded: "/api/runs/a b"
  std::string query;    ///< as received, without '?': "limit=3"
  HttpHeaders headers;  ///< in the order received
  std::string body;
  std::string peer;  ///< "127.0.0.1:4711"

  /// The first header called `name` (any case), or nothing.
  std::optional<std::string> header(std::string_view name) const;

  /// The decoded value of the first query parameter called `name`, or nothing.
  std::optional<std::string> query_value(std::string_view name) const;
};

struct HttpResponse {
  unsigned status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  HttpHeaders headers;  ///< further headers
};

/// Runs on the I/O thread: must be quick and must not block. An exception becomes a 500.
using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;

/// Sends the answer to one request. Later calls and calls after the timeout do nothing.
using HttpResponder = std::function<void(HttpResponse)>;

/// Starts on the I/O thread; the answer may come later, from any thread. After `async_timeout` the
/// client gets a 504.
using AsyncHttpHandler = std::function<void(HttpRequest, HttpResponder)>;

/// One WebSocket connection from a browser or a foreign client.
class WebSocketSession {
 public:
  virtual ~WebSocketSession() = default;

  /// Queues a message. False when the connection has ended, or ends now because the client does not
  /// read and its queue is full.
  virtual bool send_text(std::string text) = 0;
  virtual bool send_binary(std::string bytes) = 0;

  /// Sends what is queued, then a close frame. `reason` is cut at 120 bytes.
  virtual void close(std::uint16_t code = 1000, std::string reason = {}) = 0;

  /// Callbacks run on the I/O thread. Set them in the handler of the path, before it returns.
  virtual void on_text(std::function<void(std::string)> callback) = 0;
  virtual void on_binary(std::function<void(std::string)> callback) = 0;
  /// The last callback, exactly once; after it all callbacks are released.
  virtual void on_close(std::function<void()> callback) = 0;

  /// The request that opened it.
  virtual const HttpRequest& request() const noexcept = 0;
};

using WebSocketHandler = std::function<void(std::shared_ptr<WebSocketSession>)>;

/// Limits of the HTTP side. All times are absolute deadlines, so that a client that sends a byte
/// now and then gains nothing.
struct HttpLimits {
  std::size_t header_bytes = std::size_t{16} << 10U;
  std::size_t body_bytes = std::size_t{1} << 20U;
  std::size_t unauthenticated = 256;  ///< connections that are not (yet) a peer or a WebSocket
  std::size_t websockets = 256;
  std::size_t websocket_message_bytes = std::size_t{1} << 20U;
  std::size_t websocket_queue_bytes = std::size_t{8} << 20U;
  Duration header_timeout = std::chrono::seconds{10};  ///< TLS handshake and header together
  Duration body_timeout = std::chrono::seconds{30};
  Duration write_timeout = std::chrono::seconds{30};
  Duration idle_timeout = std::chrono::seconds{60};  ///< between two requests of a connection
  Duration async_timeout =
      std::chrono::seconds{30};  ///< an `AsyncHttpHandler` that does not answer
  Duration websocket_idle_timeout = std::chrono::seconds{60};  ///< pings are sent after half of it
};

/// Decodes %XX (and '+' when `plus_is_space`). Nothing when an escape is malformed.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space = false);

}  // namespace troupe::net
