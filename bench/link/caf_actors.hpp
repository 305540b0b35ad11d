// Why: CAF's io module and Troupe are measured with the same actors. Only the way to a remote
// handle and the type for plain bytes differ.
// Thread-safety: the functions spawn actors and may be called from any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "link/messages.hpp"
#include "link/system.hpp"

namespace troupe::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// How a sender respects the backpressure of its transport.
class Pacer {
 public:
  virtual ~Pacer() = default;

  /// Whether the next message may be sent now. Called before each one, so it must be cheap.
  virtual bool ready() = 0;

  /// Calls `resume` once, from any thread, when `ready` would be true again.
  virtual void when_ready(std::function<void()> resume) = 0;
};

/// For transports that know no backpressure.
class NoPacer final : public Pacer {
 public:
  bool ready() override { return true; }
  void when_ready(std::function<void()> resume) override { resume(); }
};

/// What a server has received since the last `Finish`.
struct Tally {
  Counted now;

  void add(std::size_t bytes) {
    ++now.count;
    now.bytes += bytes;
  }
};

template <class Container>
std::size_t byte_count(const Container& x) {
  return x.size() * sizeof(*x.data());
}

/// The server: echoes requests, counts everything else.
template <class Bytes>
caf::behavior server_actor(caf::stateful_actor<Tally>* self) {
  return {
      [](Small& request) { return std::move(request); },
      [self](const Note& note) { self->state.add(note.body.size()); },
      [self](const Bytes& payload) { self->state.add(byte_count(payload)); },
      [self](const std::vector<float>& payload) { self->state.add(byte_count(payload)); },
      [self](const Finish&) { return std::exchange(self->state.now, Counted{}); },
  };
}

/// A job in progress; shared by its actor and the driver that waits for it.
struct Job {
  caf::actor target;
  std::size_t count = 0;
  std::promise<expected<Timing>> done;
  Timing timing;
  Clock::time_point start;
  std::size_t sent = 0;

  void finish() {
    timing.seconds = seconds_since(start);
    done.set_value(std::move(timing));
  }
  void fail_with(std::string text) { done.set_value(fail(ec::system_error, std::move(text))); }
};

struct RequestJob : Job {
  std::size_t window = 1;
  bool timed = false;
  std::size_t ended_chains = 0;
  std::string body = std::string(small_body, 'r');
};

/// Ends the job of `self` with the text of `reason`.
template <class AnyJob>
void give_up(caf::event_based_actor* self, const std::shared_ptr<AnyJob>& job,
             const caf::error& reason) {
  job->fail_with("the request failed: " + self->system().render(reason));
  self->quit();
}

/// Without this a request to a server process that died would stay unanswered (CAF forgets those of
/// proxies), and the job would last until its limit.
template <class AnyJob>
void fail_when_target_ends(caf::event_based_actor* self, const std::shared_ptr<AnyJob>& job) {
  self->set_down_handler([self, job](const caf::down_msg& down) {
    job->fail_with("the server is gone: " + self->system().render(down.reason));
    self->quit();
  });
  self->monitor(job->target);
}

/// Sends one request; its answer sends the next. The requests have no timeout of their own, because
/// a timer per request would measure CAF's clock; the driver bounds the job as a whole.
inline void send_request(caf::event_based_actor* self, const std::shared_ptr<RequestJob>& job) {
  const std::uint64_t sequence = job->sent++;
  const auto start = job->timed ? Clock::now() : Clock::time_point{};
  self->request(job->target, caf::infinite, Small{sequence, job->body})
      .then(
          [self, job, sequence, start](const Small& answer) {
            if (job->timed) {
              job->timing.latencies_us.push_back(seconds_since(start) * 1e6);
            }
            if (answer.sequence != sequence || answer.body.size() != small_body) {
              give_up(self, job, caf::make_error(caf::sec::unexpected_response));
              return;
            }
            if (job->sent < job->count) {
              send_request(self, job);
            } else if (++job->ended_chains == std::min(job->window, job->count)) {
              job->finish();
            }
          },
          [self, job](const caf::error& reason) { give_up(self, job, reason); });
}

/// An actor that performs `job` and ends.
inline caf::actor spawn_requester(caf::actor_system& system, std::shared_ptr<RequestJob> job) {
  return system.spawn([job = std::move(job)](caf::event_based_actor* self) {
    fail_when_target_ends(self, job);
    if (job->timed) {
      job->timing.latencies_us.reserve(job->count);
    }
    job->start = Clock::now();
    for (std::size_t i = 0; i < std::min(job->window, job->count); ++i) {
      send_request(self, job);
    }
  });
}

struct OneWayJob : Job {
  /// Sends message number `i`.
  std::function<void(caf::event_based_actor* self, std::size_t i)> send;
  Pacer* pacer = nullptr;
  std::uint64_t expected_bytes = 0;
};

/// Sends until the transport wants a pause or all is sent; then asks for the count.
inline void send_one_way(caf::event_based_actor* self, const std::shared_ptr<OneWayJob>& job) {
  for (;;) {
    if (!job->pacer->ready()) {
      job->pacer->when_ready(
          [me = caf::actor_cast<caf::actor>(self)] { caf::anon_send(me, caf::atom("resume")); });
      return;
    }
    if (job->sent == job->count) {
      break;
    }
    job->send(self, job->sent++);
  }
  self->request(job->target, caf::infinite, Finish{job->count})
      .then(
          [self, job](const Counted& counted) {
            if (counted.count != job->count || counted.bytes != job->expected_bytes) {
              job->fail_with(std::to_string(counted.count) + " of " + std::to_string(job->count) +
                             " messages with " + std::to_string(counted.bytes) + " of " +
                             std::to_string(job->expected_bytes) + " bytes arrived");
            } else {
              job->finish();
            }
            self->quit();
          },
          [self, job](const caf::error& reason) { give_up(self, job, reason); });
}

/// An actor that performs `job` and ends.
inline caf::actor spawn_sender(caf::actor_system& system, std::shared_ptr<OneWayJob> job) {
  return system.spawn([job = std::move(job)](caf::event_based_actor* self) -> caf::behavior {
    fail_when_target_ends(self, job);
    job->start = Clock::now();
    send_one_way(self, job);
    return {[self, job](caf::atom_value) { send_one_way(self, job); }};
  });
}

/// Waits for a job, at most `job_limit`; then its actor is killed.
inline expected<Timing> wait_for(std::future<expected<Timing>> result, const caf::actor& worker) {
  if (result.wait_for(job_limit) != std::future_status::ready) {
    caf::anon_send_exit(worker, caf::exit_reason::kill);
    return fail(ec::timeout, "the job did not end within " + std::to_string(job_limit.count()) +
                                 " s; is the machine overloaded?");
  }
  return result.get();
}

}  // namespace troupe::bench
