// A whole cluster in one process: actors on three simulated nodes, under virtual time and faults, from one
// seed.
#include <caf/all.hpp>
#include <catch2/catch.hpp>
#include <spdlog/spdlog.h>

#include "net/caf_error.hpp"
#include "net/mesh.hpp"
#include "net/philox.hpp"
#include "net/sim.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace std::chrono_literals;

namespace {

const bool quiet = [] {
  spdlog::set_level(spdlog::level::off);  // faults are the point here
  return true;
}();

class ActorNode {
 public:
  ActorNode(SimWorld& world, std::uint32_t index, const TypeRegistry& types)
      : world_(world), id_(world.node_id(index)), address_("n" + std::to_string(index) + ":1") {
    config_.set("scheduler.policy", caf::atom("testing"));
    system_ = std::make_unique<caf::actor_system>(config_);
    system_->await_actors_before_shutdown(false);
    auto& transport = world.make_transport(id_, address_);
    REQUIRE(world.add_actor_system(*system_, id_));
    MeshConfig config;
    config.links.self = id_;
    config.links.cluster = "sim";
    config.links.address = address_;
    config.links.seed = index + 1;
    mesh_ = Mesh::create(*system_, transport, types, config);
  }

  ~ActorNode() {
    mesh_->shutdown(Duration::zero());
    world_.run_for(1s);
    world_.remove_actor_system(*system_);
  }

  const NodeId& id() const { return id_; }
  const std::string& address() const { return address_; }
  Mesh& mesh() { return *mesh_; }
  caf::actor_system& system() { return *system_; }

  /// The actor published as `name` on `node`, in virtual time.
  caf::actor find(const NodeId& node, const std::string& name) {
    caf::actor result;
    mesh_->find(node, name, 5s, [&](expected<caf::actor> found) {
      if (found) {
        result = *found;
      }
    });
    world_.run_until([&] { return static_cast<bool>(result); }, 10s);
    return result;
  }

 private:
  SimWorld& world_;
  NodeId id_;
  std::string address_;
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
  std::shared_ptr<Mesh> mesh_;
};

struct Outcome {
  std::uint64_t answered = 0;
  std::uint64_t wrong = 0;
  std::uint64_t errors = 0;
  std::uint64_t hash = 0;
};

// Node 0 asks node 1, which delegates every third request to node 2.
Outcome run_cluster(std::uint64_t seed) {
  constexpr std::uint64_t total = 600;
  TypeRegistry types;
  types.freeze();
  SimWorld world{seed};
  PhiloxStream random{seed, 5};
  Outcome outcome;
  ActorNode a{world, 0, types};
  ActorNode b{world, 1, types};
  ActorNode c{world, 2, types};
  int linked = 0;
  const auto count = [&](expected<NodeId> peer) { linked += peer ? 1 : 0; };
  a.mesh().connect(b.address(), count);
  b.mesh().connect(c.address(), count);
  REQUIRE(world.run_until([&] { return linked == 2; }, 10s));
  c.mesh().publish(
      "far", c.system().spawn([](caf::event_based_actor*,
                                 int) { return caf::behavior{[](std::uint64_t x) { return x; }}; },
                              0));
  const auto far = b.find(c.id(), "far");
  REQUIRE(far);
  b.mesh().publish("near", b.system().spawn(
                               [far](caf::event_based_actor* self, int) {
                                 return caf::behavior{[=](std::uint64_t x) {
                                   auto promise = self->make_response_promise();
                                   if (x % 3 == 0) {
                                     promise.delegate(far, x);
                                   } else {
                                     promise.deliver(x);
                                   }
                                   return promise;
                                 }};
                               },
                               0));
  const auto near = a.find(b.id(), "near");
  REQUIRE(near);
  a.system().spawn(
      [&, near](caf::event_based_actor* self, int) {
        const auto next = std::make_shared<std::function<void(std::uint64_t)>>();
        self->attach_functor([next] { *next = nullptr; });
        *next = [=, &outcome, &world, &a](std::uint64_t i) {
          if (i == total) {
            self->quit();
            return;
          }
          self->request(near, caf::infinite, i)
              .then(
                  [=, &outcome, &world, &a](std::uint64_t answer) {
                    ++outcome.answered;
                    outcome.wrong += answer == i ? 0 : 1;
                    world.log(a.id(), "answer " + std::to_string(answer));
                    (*next)(i + 1);
                  },
                  [=, &outcome](caf::error&) {
                    ++outcome.errors;
                    (*next)(i + 1);
                  });
        };
        (*next)(0);
      },
      0);
  for (int fault = 0; fault < 40; ++fault) {
    world.run_for(Duration{static_cast<Duration::rep>(random.below(20'000'000))});
    const bool first = random.below(2) == 0;
    world.drop_connections(first ? a.id() : b.id(), first ? b.id() : c.id(),
                           random.below(2) == 0 ? SimLoss::both : SimLoss::first_only,
                           StreamPurpose::link);
  }
  world.run_until([&] { return outcome.answered + outcome.errors == total; }, 120s);
  CHECK(a.mesh().table_sizes(b.id()).pending == 0);
  CHECK(b.mesh().table_sizes(c.id()).pending == 0);
  CHECK(a.mesh().link_counters(b.id()).connections > 3);
  outcome.hash = world.log_hash();
  return outcome;
}

}  // namespace

TEST_CASE("actors on a simulated cluster: every request answered once through 40 lost connections",
          "[mesh][sim]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    const auto once = run_cluster(seed);
    CHECK(once.answered == 600);
    CHECK(once.wrong == 0);
    CHECK(once.errors == 0);
    const auto again = run_cluster(seed);
    CHECK(once.hash == again.hash);
  }
}
