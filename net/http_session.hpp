// Why: one accepted connection, from its first byte until it has ended or become a WebSocket or a
// peer stream.
// Thread-safety: belongs to the endpoint's loop. Internal to net/.
#pragma once

#include <memory>

#include <boost/asio/ip/tcp.hpp>

#include "net/endpoint_core.hpp"

namespace troupe::net {

/// Starts to serve `socket`; the session keeps itself alive.
void serve_http(std::shared_ptr<EndpointCore> core, boost::asio::ip::tcp::socket socket);

}  // namespace troupe::net
