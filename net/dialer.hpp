// Why: one attempt to reach a peer: look-up, connect, TLS, upgrade, all within one deadline.
// Thread-safety: `dial_peer` may be called from any thread. Internal to net/.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "net/asio_executor.hpp"
#include "net/error.hpp"
#include "net/node_id.hpp"
#include "net/stream.hpp"
#include "net/tcp_stream.hpp"
#include "net/tls.hpp"

namespace troupe::net {

struct DialRequest {
  std::string address;
  StreamPurpose purpose = StreamPurpose::link;
  Duration timeout{};
  NodeId node;  ///< ours
  std::string cluster;
  std::shared_ptr<const TlsContext> tls;  ///< null: plaintext
};

struct Dialled {
  DetachedSocket socket;
  NodeId peer;
};

/// `done` is called once, on the executor's thread (on the caller's when the executor has stopped).
void dial_peer(std::shared_ptr<AsioExecutor> executor, DialRequest request,
               std::function<void(expected<Dialled>)> done);

}  // namespace troupe::net
