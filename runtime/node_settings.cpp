#include "runtime/node_settings.hpp"

namespace troupe {

NodeOptions node_options(const NodeSettings& settings) {
  NodeOptions options;
  options.listen = settings.listen;
  options.advertise = settings.advertise;
  options.name = settings.name;
  options.cluster = settings.cluster;
  options.tls = settings.tls;
  options.insecure = settings.insecure;
  options.link.grace = settings.link_grace;
  return options;
}

}  // namespace troupe
