// Why: the command line asks a node's HTTP interface, and must end with an answer or a reason within the
// time it was given, whatever is at the other end.
// Thread-safety: any thread, but never one that others wait for: it blocks.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "net/error.hpp"
#include "net/executor.hpp"
#include "net/tls.hpp"

namespace troupe::net {

struct HttpCall {
  std::string address;  ///< "host:port"
  std::string method = "GET";
  std::string target = "/";  ///< encoded: "/api/v1/events?after=3"
  std::string body;
  std::string content_type = "application/json";  ///< of the body, when there is one
  std::shared_ptr<const TlsContext> tls;          ///< null: plaintext
  Duration timeout = std::chrono::seconds{2};     ///< for everything together, the name look-up too
  std::size_t body_limit = std::size_t{16} << 20U;
};

struct HttpResult {
  unsigned status = 0;
  std::string content_type;
  std::string body;
};

/// One request on a connection of its own. An answer is a result whatever its status. Errors:
/// invalid_argument (address, target), refused (nothing listens), node_unreachable, timeout, unauthorized
/// (TLS), malformed (no HTTP), limit_exceeded (the answer is too large).
expected<HttpResult> http_request(const HttpCall& call);

/// Escapes what may not stand in a path segment or a query value.
std::string percent_encode(std::string_view text);

}  // namespace troupe::net
