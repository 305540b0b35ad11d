// Why: one WebSocket connection after its HTTP request has been read.
// Thread-safety: belongs to the endpoint's loop, except where `WebSocketSession` says otherwise.
// Internal to net/.
#pragma once

#include <memory>

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include "net/endpoint_core.hpp"
#include "net/http_socket.hpp"

namespace troupe::net {

/// Answers the upgrade `raw` and, when that has worked, calls `handler` with the session.
void serve_websocket(std::shared_ptr<EndpointCore> core, std::unique_ptr<HttpSocket> socket,
                     boost::beast::http::request<boost::beast::http::string_body> raw,
                     HttpRequest request, WebSocketHandler handler);

}  // namespace troupe::net
