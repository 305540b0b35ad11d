// Why: everything a CAF-based system has in common, over a `Link` that knows how actors of two
// processes find each other:
//
//   struct Link {
//     using Bytes = …;                                        // best type for plain bytes
//     static Bytes make_bytes(std::size_t size);
//     static void configure(caf::actor_system_config& config);  // types, modules
//     explicit Link(caf::actor_system& system);
//     expected<std::uint16_t> publish(const caf::actor& server);
//     expected<caf::actor> connect(std::uint16_t port);
//     Pacer& pacer();                                         // after connect
//   };
//
// Thread-safety: as System.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "link/caf_actors.hpp"

namespace troupe::bench {

template <class Link>
class CafSystem final : public System {
 public:
  CafSystem() : system_(config_), link_(system_) {}

  ~CafSystem() override { remote_ = nullptr; }

  expected<std::uint16_t> start_server() override {
    return link_.publish(system_.spawn(server_actor<typename Link::Bytes>));
  }

  expected<void> connect(std::uint16_t port) override {
    auto remote = link_.connect(port);
    if (!remote) {
      return fail(remote.error());
    }
    remote_ = std::move(*remote);
    return {};
  }

  expected<Timing> round_trips(std::size_t count) override { return request(count, 1, true); }

  expected<Timing> pipelined(std::size_t count, std::size_t window) override {
    return request(count, window, false);
  }

  expected<Timing> one_way(std::size_t count) override {
    auto job = std::make_shared<OneWayJob>();
    job->send = [target = remote_, body = std::string(small_body, 'n')](
                    caf::event_based_actor* self, std::size_t i) {
      self->send(target, Note{i, body});
    };
    return send(std::move(job), count, small_body);
  }

  expected<Timing> bulk(Payload payload, std::size_t size, std::size_t count) override {
    // One message sent many times: the sender's copy of the payload is made once, for every system.
    auto content = payload == Payload::floats
                       ? caf::make_message(std::vector<float>(size / sizeof(float), 0.5F))
                       : caf::make_message(Link::make_bytes(size));
    auto job = std::make_shared<OneWayJob>();
    job->send = [target = remote_, content](caf::event_based_actor* self, std::size_t) {
      self->send(target, content);
    };
    return send(std::move(job), count, size);
  }

  bool carries(Payload) const override { return true; }

 private:
  struct Config : caf::actor_system_config {
    Config() {
      set("scheduler.policy", caf::atom("sharing"));
      set("scheduler.max-throughput", std::size_t{300});
      Link::configure(*this);
    }
  };

  expected<Timing> request(std::size_t count, std::size_t window, bool timed) {
    auto job = std::make_shared<RequestJob>();
    job->target = remote_;
    job->count = count;
    job->window = window;
    job->timed = timed;
    auto result = job->done.get_future();
    return wait_for(std::move(result), spawn_requester(system_, job));
  }

  expected<Timing> send(std::shared_ptr<OneWayJob> job, std::size_t count, std::size_t size) {
    job->target = remote_;
    job->count = count;
    job->expected_bytes = std::uint64_t{count} * size;
    job->pacer = &link_.pacer();
    auto result = job->done.get_future();
    return wait_for(std::move(result), spawn_sender(system_, job));
  }

  Config config_;
  caf::actor_system system_;
  Link link_;
  caf::actor remote_;
};

}  // namespace troupe::bench
