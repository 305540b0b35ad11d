// Why: the decorator behind net/faults.hpp. While its plan is empty, bytes pass without a copy.
// Thread-safety: as net/stream.hpp; the mutex joins the writer's thread, the executor's and the one
// that changes the plan. It is held while the inner stream's members are called (they never call
// back), never while the sink is.
#pragma once

#include <deque>
#include <optional>

#include "net/faults.hpp"
#include "net/philox.hpp"

namespace troupe::net {

class FaultStream;

/// One peer's plan and streams.
struct FaultPeer {
  mutable std::mutex mutex;
  FaultPlan plan;
  /// Grows with each change; streams compare it with what they last saw.
  std::atomic<std::uint64_t> version{1};
  std::atomic<bool> corrupt_next{false};
  std::vector<std::weak_ptr<FaultStream>> streams;

  std::vector<std::shared_ptr<FaultStream>> open_streams();
};

/// Sits between the inner stream and the user's sink.
class FaultStream final : public Stream,
                          public StreamSink,
                          public std::enable_shared_from_this<FaultStream> {
 public:
  FaultStream(std::shared_ptr<FaultInjector> injector, std::shared_ptr<FaultPeer> peer,
              std::shared_ptr<Stream> inner, Executor& executor, PhiloxStream random);
  ~FaultStream() override;

  // Stream
  void start(std::shared_ptr<StreamSink> sink) override;
  std::size_t write(std::span<const ConstBuffer> buffers) override;
  void close(error reason) override;
  std::string peer_address() const override { return inner_->peer_address(); }
  bool encrypted() const noexcept override { return inner_->encrypted(); }

  // StreamSink of the inner stream
  MutableBuffer read_window() override;
  void on_bytes(std::size_t count) override;
  void on_writable() override;
  void on_closed(const error& reason) override;

  /// The plan has changed. Any thread.
  void poke();
  /// Ends the connection. Any thread.
  void drop(const std::string& why);

 private:
  struct Piece {
    TimePoint due;
    std::vector<std::byte> bytes;
    std::size_t offset = 0;
  };

  void refresh();
  void set_wake(TimePoint when);
  void wake();
  void hold_out(ConstBuffer bytes);
  void pump_out();
  void pump_in();
  bool deliver_piece();
  void count_bytes(std::size_t count);
  void maybe_corrupt(std::byte* data, std::size_t count);
  void check_death(TimePoint now);
  bool room_out() const { return held_out_ <= injector_->limits_.held_out / 2; }
  std::uint64_t distance(std::uint64_t mean) { return random_.below(2 * mean) + 1; }

  const std::shared_ptr<FaultInjector> injector_;
  const std::shared_ptr<FaultPeer> peer_;
  const std::shared_ptr<Stream> inner_;
  Executor& executor_;

  std::mutex mutex_;
  FaultPlan plan_;
  std::uint64_t seen_ = 0;
  PhiloxStream random_;
  std::uint64_t until_drop_ = 0;
  std::uint64_t until_corrupt_ = 0;
  bool ended_ = false;
  bool started_ = false;

  std::deque<Piece> out_;
  std::size_t held_out_ = 0;
  TimePoint line_free_{};
  bool inner_full_ = false;
  bool want_writable_ = false;

  std::deque<Piece> in_;
  std::size_t held_in_ = 0;
  std::optional<TimePoint> held_since_;
  std::optional<TimePoint> wake_at_;

  // Only on the executor.
  std::shared_ptr<StreamSink> sink_;
  std::vector<std::byte> scratch_;
  MutableBuffer direct_{};
  std::optional<error> inner_reason_;
  bool closed_ = false;
};

}  // namespace troupe::net
