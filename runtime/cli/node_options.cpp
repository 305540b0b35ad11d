#include "runtime/cli/node_options.hpp"

#include <CLI/CLI.hpp>

namespace troupe::cli {

void NodeArguments::add_to(CLI::App& command, bool client) {
  if (!client) {
    command
        .add_option("--listen", listen,
                    "host:port for peers, HTTP and WebSocket; port 0 takes a free one")
        ->capture_default_str();
    command.add_option("--advertise", advertise,
                       "host:port at which peers dial this node, if not the one it listens on");
    command.add_flag("--insecure", insecure,
                     "Listen off loopback without TLS: anybody who reaches the port gets in");
  }
  command.add_option("--name", name, "Label of the node, and of its certificate files")
      ->capture_default_str();
  command.add_option("--cluster-name", cluster, "Only nodes of the same cluster talk")
      ->capture_default_str();
  command.add_option(
      "--tls", tls_folder,
      "Folder with ca.pem, NAME.pem and NAME.key as `troupe certs issue` writes them");
  command.add_option("--tls-ca", tls.ca_file, "The cluster's CA, instead of --tls");
  command.add_option("--tls-cert", tls.cert_file, "This node's certificate, instead of --tls");
  command.add_option("--tls-key", tls.key_file, "This node's private key, instead of --tls");
}

NodeOptions NodeArguments::resolve() const {
  NodeOptions options;
  options.listen = listen;
  options.advertise = advertise;
  options.name = name;
  options.cluster = cluster;
  options.insecure = insecure;
  options.tls = tls;
  if (!tls_folder.empty()) {
    const NodeTls files = NodeTls::in_folder(tls_folder, name);
    const auto fill = [](std::string& to, const std::string& from) {
      if (to.empty()) {
        to = from;
      }
    };
    fill(options.tls.ca_file, files.ca_file);
    fill(options.tls.cert_file, files.cert_file);
    fill(options.tls.key_file, files.key_file);
  }
  return options;
}

}  // namespace troupe::cli
