// The smallest user of an installed Troupe: prints its version and a node's identity.
#include <iostream>

#include <troupe/net/certs.hpp>
#include <troupe/net/node_id.hpp>
#include <troupe/net/philox.hpp>
#include <troupe/troupe_version.hpp>

int main() {
  const auto id = troupe::NodeId::random();
  const auto parsed = troupe::NodeId::parse(troupe::to_string(id));
  if (!parsed || *parsed != id) {
    std::cerr << "a node id does not survive its text form\n";
    return 1;
  }
  troupe::PhiloxStream random{42};
  std::cout << "Troupe " << troupe::build_string << ", node " << troupe::to_string(id)
            << ", first draw of seed 42: " << random()
            << ", cluster name in certificates: " << troupe::net::cluster_uri("example") << '\n';
  return 0;
}
