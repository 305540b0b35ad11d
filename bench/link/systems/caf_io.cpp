// CAF's own io module (BASP): what Troupe's links replace.
#include <caf/io/all.hpp>

#include "link/caf_system.hpp"

namespace troupe::bench {

namespace {

class CafIoLink {
 public:
  /// Copied as a whole by CAF's serialiser, unlike other sequences.
  using Bytes = std::vector<std::uint8_t>;

  static Bytes make_bytes(std::size_t size) { return Bytes(size, std::uint8_t{0x5A}); }

  static void configure(caf::actor_system_config& config) {
    config.load<caf::io::middleman>();
    config.add_message_type<Small>("bench_small");
    config.add_message_type<Note>("bench_note");
    config.add_message_type<Finish>("bench_finish");
    config.add_message_type<Counted>("bench_counted");
    config.add_message_type<Bytes>("bench_bytes");
    config.add_message_type<std::vector<float>>("bench_floats");
  }

  explicit CafIoLink(caf::actor_system& system) : system_(system) {}

  expected<std::uint16_t> publish(const caf::actor& server) {
    auto port = system_.middleman().publish(server, 0, "127.0.0.1");
    if (!port) {
      return fail(ec::system_error, "publish failed: " + system_.render(port.error()));
    }
    return *port;
  }

  expected<caf::actor> connect(std::uint16_t port) {
    auto remote = system_.middleman().remote_actor("127.0.0.1", port);
    if (!remote) {
      return fail(ec::node_unreachable, "remote_actor failed: " + system_.render(remote.error()));
    }
    return *remote;
  }

  Pacer& pacer() { return pacer_; }

 private:
  caf::actor_system& system_;
  NoPacer pacer_;
};

const Registration registration{"caf_io", [] { return std::make_unique<CafSystem<CafIoLink>>(); }};

}  // namespace

}  // namespace troupe::bench
