// Why: every measured system does the same jobs behind this interface, so that the driver, the
// repetitions and the report know nothing about CAF, Asio or Troupe. A system is one file below
// systems/ that registers itself.
// Thread-safety: a System belongs to the thread that made it; the registry is filled before main.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/error.hpp"

namespace troupe::bench {

/// What a bulk message carries.
enum class Payload : std::uint8_t {
  /// The fastest type for plain bytes that the system has.
  bytes,
  /// `std::vector<float>`, sizes in bytes.
  floats,
};

/// One measured job.
struct Timing {
  double seconds = 0;
  /// One entry per request; only filled by `round_trips`.
  std::vector<double> latencies_us;
};

/// Bytes in the body of a small message (requests, answers and one-way notes).
inline constexpr std::size_t small_body = 100;

/// No single job may take longer; then it is an error.
inline constexpr std::chrono::seconds job_limit{60};

/// One way to let two processes talk. The same class plays both sides: `start_server` in the child,
/// everything else in the driver.
class System {
 public:
  System() = default;
  System(const System&) = delete;
  System& operator=(const System&) = delete;
  virtual ~System() = default;

  /// Listens on a free port of the loopback interface, serves on its own threads, gives the port.
  virtual expected<std::uint16_t> start_server() = 0;

  /// Connects to a server that listens at 127.0.0.1:`port`.
  virtual expected<void> connect(std::uint16_t port) = 0;

  /// `count` small requests, one after the other, each timed.
  virtual expected<Timing> round_trips(std::size_t count) = 0;

  /// `count` small requests, at most `window` unanswered.
  virtual expected<Timing> pipelined(std::size_t count, std::size_t window) = 0;

  /// `count` small messages without an answer, then one request that is answered when all arrived.
  virtual expected<Timing> one_way(std::size_t count) = 0;

  /// As `one_way`, with payloads of `size` bytes each.
  virtual expected<Timing> bulk(Payload payload, std::size_t size, std::size_t count) = 0;

  /// Whether `bulk` knows this kind of payload.
  virtual bool carries(Payload payload) const { return payload == Payload::bytes; }
};

using SystemFactory = std::function<std::unique_ptr<System>()>;

/// Makes a system known under `name`; a static object in the system's file.
struct Registration {
  Registration(std::string name, SystemFactory factory);
};

/// A new system, or null when `name` is not part of this build.
std::unique_ptr<System> make_system(const std::string& name);

/// Every system the benchmark knows of, in the order of the report, built or not.
const std::vector<std::string>& known_systems();

}  // namespace troupe::bench
