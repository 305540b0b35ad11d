// Why: browsers and foreign clients talk to actors too. The gateway takes requests as JSON over a
// WebSocket, passes them to published actors, and sends the answers back:
//   {"id": 1, "to": "echo", "type": "string", "body": "hello"}
//   {"id": 1, "type": "string", "body": "hello"}        or      {"id": 1, "error": {"code", "text"}}
// `type` is "string", "int", "float", "bool", or a registered Protobuf message, whose body is its
// canonical JSON form. Without an id nothing is answered. "to" may be "name@node" with the 32 digits of a
// linked node; otherwise the name is looked up on this node.
// Thread-safety: `open` and `close` from any thread.
#pragma once

#include <memory>
#include <string>

#include <caf/actor_system.hpp>

#include "net/endpoint.hpp"
#include "net/mesh.hpp"

namespace troupe::net {

class Gateway {
 public:
  virtual ~Gateway() = default;

  /// Serves `path` of `endpoint`. All arguments must outlive `close` and the sessions it ends.
  static std::shared_ptr<Gateway> open(Mesh& mesh, caf::actor_system& system,
                                       const TypeRegistry& registry, Endpoint& endpoint,
                                       const std::string& path);

  /// Ends all sessions and refuses new ones.
  virtual void close() = 0;
};

}  // namespace troupe::net
