// Why: promises about failures are only worth what a test can break. The injector puts a decorator
// around streams, on any transport, that delays, throttles, partitions, corrupts and drops on
// demand. A node without an injector has no decorator at all, so unused it costs nothing.
// Thread-safety: the injector may be controlled from any thread; its streams follow the rules of
// net/stream.hpp. The executors given to `wrap` must outlive the streams.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "net/stream.hpp"

namespace troupe::net {

enum class FaultSide : std::uint8_t { in = 1, out = 2, both = 3 };

/// What happens to all bytes between this node and one peer, until it is changed. In and out are as
/// this node sees them.
struct FaultPlan {
  Duration delay_in{0};
  Duration delay_out{0};
  /// Held back, not lost: after healing they go on in order.
  bool partition_in = false;
  bool partition_out = false;
  /// Dials fail at once; without a partition, which lets them time out.
  bool refuse_dials = false;
  /// Sent bytes per second and stream; 0 = unlimited.
  std::uint64_t bytes_per_second = 0;
  /// Mean number of bytes (both directions) after which a connection is dropped; 0 = never. The
  /// distances are drawn from the injector's seed, uniform in [1, 2 * mean].
  std::uint64_t drop_every = 0;
  /// Mean number of received bytes after which one bit is flipped; 0 = never. Drawn likewise.
  std::uint64_t corrupt_every = 0;
};

struct FaultLimits {
  /// Received bytes that a partition or delay may hold per stream; above it the stream ends.
  std::size_t held_in = std::size_t{64} << 20U;
  /// Sent bytes held per stream; above it `write` is short.
  std::size_t held_out = std::size_t{1} << 20U;
  /// A stream ends when a partition has held its bytes this long.
  Duration partition_death = std::chrono::seconds{20};
};

struct FaultCounters {
  std::uint64_t wrapped = 0;
  std::uint64_t dropped = 0;
  std::uint64_t corrupted = 0;
  std::uint64_t refused_dials = 0;
};

struct FaultPeer;

class FaultInjector : public std::enable_shared_from_this<FaultInjector> {
 public:
  explicit FaultInjector(std::uint64_t seed, FaultLimits limits = {});
  ~FaultInjector();
  FaultInjector(const FaultInjector&) = delete;
  FaultInjector& operator=(const FaultInjector&) = delete;

  /// The plan for one peer, open streams included.
  void set(const NodeId& peer, FaultPlan plan);
  FaultPlan plan(const NodeId& peer) const;
  /// Sets or ends a partition; leaves the rest of the plan alone.
  void partition(const NodeId& peer, FaultSide side);
  void heal(const NodeId& peer);
  /// No faults for anyone any more.
  void clear();
  /// Ends all open streams to `peer` with `ec::node_unreachable`. Returns how many.
  std::size_t drop(const NodeId& peer);
  /// Flips one bit of the next bytes that arrive from `peer`.
  void corrupt_next(const NodeId& peer);
  FaultCounters counters() const;

  /// The decorated stream. `executor`: the one `stream` calls its sink on.
  std::shared_ptr<Stream> wrap(std::shared_ptr<Stream> stream, NodeId peer, Executor& executor);

  /// Whether a dial to `peer` may go out now: `ec::timeout` while a partition lasts, `ec::refused`.
  expected<void> check_dial(const NodeId& peer);
  /// The same by address, for the peer that was last seen there; an unknown address is let through.
  expected<void> check_dial(std::string_view address);
  /// Which peer answers at `address`.
  void learn(std::string_view address, const NodeId& peer);

 private:
  friend class FaultStream;
  std::shared_ptr<FaultPeer> obtain(const NodeId& peer);
  std::shared_ptr<FaultPeer> lookup(const NodeId& peer) const;

  std::uint64_t seed_;
  FaultLimits limits_;
  mutable std::mutex mutex_;
  std::map<NodeId, std::shared_ptr<FaultPeer>> peers_;
  std::map<std::string, NodeId, std::less<>> addresses_;
  std::uint32_t streams_ = 0;
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<std::uint64_t> corrupted_{0};
  std::atomic<std::uint64_t> refused_{0};
};

/// A transport whose streams and dials go through an injector. `inner` must outlive it.
class FaultyTransport final : public Transport {
 public:
  FaultyTransport(Transport& inner, std::shared_ptr<FaultInjector> injector)
      : inner_(inner), injector_(std::move(injector)) {}

  Executor& executor(StreamPurpose purpose) override { return inner_.executor(purpose); }
  void dial(std::string address, StreamPurpose purpose, Duration timeout,
            DialHandler done) override;
  void on_accept(AcceptHandler handler) override;

 private:
  Transport& inner_;
  std::shared_ptr<FaultInjector> injector_;
};

}  // namespace troupe::net
