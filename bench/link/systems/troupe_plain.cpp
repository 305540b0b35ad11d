// Troupe's links without encryption.
#include "link/troupe_link.hpp"

namespace troupe::bench {

namespace {

struct PlainLink : TroupeLink {
  explicit PlainLink(caf::actor_system& system) : TroupeLink(system, nullptr) {}
};

const Registration registration{"troupe_plain",
                                [] { return std::make_unique<CafSystem<PlainLink>>(); }};

}  // namespace

}  // namespace troupe::bench
