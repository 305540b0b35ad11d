// Why: the commands that start a node or talk to one share the options that decide who may talk to whom.
// Thread-safety: main thread.
#pragma once

#include <string>

#include "runtime/node.hpp"

namespace CLI {
class App;
}

namespace troupe::cli {

struct NodeArguments {
  std::string listen = "127.0.0.1:0";
  std::string advertise;
  std::string name = "node";
  std::string cluster = "troupe";
  std::string tls_folder;
  NodeTls tls;
  bool insecure = false;

  /// Adds the options to a command. `client`: only those that a command needs which does not serve.
  void add_to(CLI::App& command, bool client = false);

  /// As options of a node.
  NodeOptions resolve() const;
};

}  // namespace troupe::cli
