// Why: who is restarted after a failure, in which order, how often and how soon is decided here and nowhere else, by
// the rules of Erlang/OTP. A supervisor is a pure state machine over its children: whoever drives it reports what
// happened to them and carries out the actions it returns, so that the rules can be tested without a cluster. A child is
// a replica or another supervisor; trees are made by drivers that feed the outcome of one into its parent.
// Thread-safety: none; one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "net/error.hpp"
#include "net/executor.hpp"
#include "supervision/membership.hpp"

namespace troupe {

/// Who is restarted together with a child that failed.
enum class Strategy : std::uint8_t {
  one_for_one,   ///< nobody else
  one_for_all,   ///< all children
  rest_for_one,  ///< those after it in start order
};
std::string_view to_string(Strategy strategy) noexcept;
std::optional<Strategy> strategy_from_string(std::string_view name) noexcept;

/// Which ends of a child are followed by a restart (OTP's restart types).
enum class ChildKind : std::uint8_t {
  permanent,  ///< any
  transient,  ///< failures, not a normal end
  temporary,  ///< none; a failure does not concern the siblings either
};
std::string_view to_string(ChildKind kind) noexcept;
std::optional<ChildKind> child_kind_from_string(std::string_view name) noexcept;

/// Delay before the n-th restart in a row: min(most, first * factor^(n-1)), times a factor drawn from
/// [1 - jitter, 1]. n falls back to 1 once the child has run for `reset_after`. `first` zero: no delay at all.
struct Backoff {
  Milliseconds first{0};
  Milliseconds most{10'000};
  double factor = 2.0;
  double jitter = 0.5;  ///< in [0, 1]
  Milliseconds reset_after{10'000};
};

struct SupervisorSpec {
  Strategy strategy = Strategy::one_for_one;
  /// More than `restarts` within `within` are too many: the supervisor ends its children and fails itself. A restart of
  /// several children counts once, a restart whose start fails counts again.
  std::uint32_t restarts = 3;
  Milliseconds within{5'000};
  Backoff backoff;
  /// Each child starts when the one before it has started (OTP). False: all at once, in order of their numbers.
  bool sequential = true;
};

struct ChildSpec {
  std::string name;
  ChildKind kind = ChildKind::permanent;
  /// The supervisor ends (successfully) once all significant children have ended normally.
  bool significant = false;
};

enum class ChildState : std::uint8_t {
  idle,      ///< not started yet, or ended for good
  starting,  ///< told to start
  running,
  waiting,   ///< will be started again after the back-off, or when those before it have started
  stopping,  ///< told to stop
};
std::string_view to_string(ChildState state) noexcept;

enum class SupervisorState : std::uint8_t {
  idle,
  starting,  ///< at least one child has not started for the first time
  running,
  stopping,  ///< children are being stopped; then it ends
  ended,
};
std::string_view to_string(SupervisorState state) noexcept;

/// How a child ended by itself.
enum class ChildEnd : std::uint8_t {
  normal,  ///< it was done
  failed,  ///< exception, kill, lost node, failed constructor, …
};

/// What the driver has to do now, in this order.
struct SupervisorAction {
  enum class Kind : std::uint8_t { start, stop } kind = Kind::start;
  std::size_t child = 0;
  std::string reason;         ///< of a stop: for whoever reads the child's end
  std::uint32_t attempt = 0;  ///< of a start: 0 the first time, then restarts in a row
};

/// A decision about a failure, for log, metrics and history.
struct SupervisorDecision {
  std::size_t child = 0;
  std::string failure;   ///< what the child's end said
  std::string decision;  ///< "restart", "restart all", "restart rest", "give up", "leave ended"
  std::uint32_t attempt = 0;  ///< of the restart, from 1
  Milliseconds delay{0};      ///< back-off before it
  std::uint32_t used = 0;     ///< restarts counted within the period, this one included
};

class SupervisorCore {
 public:
  /// `seed` draws the jitter.
  SupervisorCore(SupervisorSpec spec, std::vector<ChildSpec> children, std::uint64_t seed);

  // -- what happened (times never go back) -----------------------------------------------------------

  /// Starts all children in order. Also after it has ended: everything anew, the budget included.
  void start(net::TimePoint now);
  /// Stops all children in reverse order of start, each when the one after it has stopped (`sequential` false: all at
  /// once), then ends.
  void stop(const std::string& reason, net::TimePoint now);
  void child_started(std::size_t child, net::TimePoint now);
  /// It ended without having been told, or its start failed. While `stopping` the same as `child_stopped`.
  void child_ended(std::size_t child, ChildEnd how, const std::string& reason, net::TimePoint now);
  /// The order to stop has been carried out.
  void child_stopped(std::size_t child, net::TimePoint now);
  /// Time has come; needed at `next_tick`.
  void tick(net::TimePoint now);

  /// Takes a child that is known to run already into the books (a restarted head finds its replicas).
  void adopt_running(std::size_t child, net::TimePoint now);

  /// One more child at the end; started by the supervisor if it has been started itself. Returns its number.
  std::size_t add_child(ChildSpec spec, net::TimePoint now);
  /// The last child, which must be idle or is stopped first (an action), is taken out once it has ended. No restart.
  void remove_last_child(net::TimePoint now);

  // -- what to do --------------------------------------------------------------------------------------

  std::vector<SupervisorAction> take_actions();
  std::vector<SupervisorDecision> take_decisions();
  std::optional<net::TimePoint> next_tick() const;

  // -- what is -----------------------------------------------------------------------------------------

  SupervisorState state() const noexcept { return state_; }
  /// After `ended`: no error when it was stopped or its children are done; else why it gave up (ec::actor_down for
  /// a child's failure beyond the budget, with the child's name and text).
  const error& outcome() const noexcept { return outcome_; }
  /// True when it ended because everything there was to do is done (no child is left running and none failed for
  /// good, or the significant ones have ended normally), rather than by `stop`.
  bool completed() const noexcept { return completed_; }

  std::size_t size() const noexcept { return children_.size(); }
  const ChildSpec& child(std::size_t index) const { return children_[index].spec; }
  ChildState child_state(std::size_t index) const { return children_[index].state; }
  std::uint64_t restarts(std::size_t index) const { return children_[index].restarts; }
  const SupervisorSpec& spec() const noexcept { return spec_; }

 private:
  struct Child {
    ChildSpec spec;
    ChildState state = ChildState::idle;
    std::uint64_t restarts = 0;  ///< in all
    std::uint32_t in_a_row = 0;  ///< for the back-off
    bool wanted = false;         ///< to be started once its turn comes
    bool done =
        false;  ///< ended normally or given up (temporary): not started by restarts of others
    bool failed_for_good = false;  ///< a temporary child that failed
    net::TimePoint since{};        ///< of the state
    net::TimePoint not_before{};   ///< of the next start
  };

  // Members beyond this line belong to the implementation and may be changed by it.
  SupervisorSpec spec_;
  std::vector<Child> children_;
  std::uint64_t seed_;
  std::uint64_t draws_ = 0;
  SupervisorState state_ = SupervisorState::idle;
  error outcome_;
  bool completed_ = false;
  std::deque<net::TimePoint> history_;
  std::vector<SupervisorAction> actions_;
  std::vector<SupervisorDecision> decisions_;
};

}  // namespace troupe
