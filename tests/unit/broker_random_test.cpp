// Thousands of random steps of processes that join, die, return, lie, drain, claim, and of brokers that are
// started anew. After each step the rules that must hold whatever happens are checked, among them the one all
// of this is for: no two processes host an exclusive path at the same time.
#include <array>
#include <map>
#include <set>

#include "net/philox.hpp"
#include "supervision/broker_store.hpp"
#include "tests/support/process.hpp"
#include "tests/unit/broker_core_support.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::size_t slots = 9;  // addresses; at the first runs the broker
constexpr std::size_t path_count = 20;

/// A node process as it sees itself.
struct Process {
  std::uint64_t number = 0;  // of its id
  bool running = false;
  std::uint64_t incarnation = 0;
  View view;
  /// When it heard the broker last; exclusive things live on that for a lease.
  net::TimePoint contact;
  std::map<std::string, std::uint64_t> hosts;  // exclusive paths and their generations
};

class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed), store_(make_memory_store()) {
    rig_.config.max_delta_log = 16;
    rig_.config.max_tombstones = 40;
    for (auto& process : processes_) {
      process.number = next_number_++;
    }
    start_broker();
  }

  void step() {
    const auto what = random_.below(100);
    auto& process = processes_[random_.below(slots)];
    if (what < 18) {
      join(process);
    } else if (what < 46) {
      sync(process);
    } else if (what < 56) {
      observe();
    } else if (what < 81) {
      claim_or_release(process);
    } else if (what < 82) {
      rig_.core->drain({"n" + std::to_string(process.number), 0, "random"}, rig_.now);
    } else if (what < 84) {
      leave(process);
    } else if (what < 87) {
      die(process);
    } else if (what < 98) {
      rig_.pass(Milliseconds{random_.below(random_.below(4) == 0 ? 20'000 : 500)});
    } else {
      start_broker();
    }
    check();
  }

  std::uint64_t grants() const { return grants_; }
  std::uint64_t downs() const { return downs_; }

 private:
  static std::string address(std::size_t slot) { return Rig::address(slot + 1); }
  std::size_t slot_of(const Process& process) const {
    return static_cast<std::size_t>(&process - processes_.data());
  }
  bool is_head(const Process& process) const { return &process == processes_.data(); }

  void replace(Process& process) {
    process = Process{};
    process.number = next_number_++;
    process.running = true;
  }

  void die(Process& process) {
    if (!is_head(process)) {
      process.running = false;
      process.hosts.clear();
    }
  }

  /// Another process takes over what the store has; the old one's process ends with it.
  void start_broker() {
    auto& head = processes_[0];
    replace(head);
    rig_.config.self = node(head.number);
    rig_.config.address = address(0);
    auto state = store_->load();
    REQUIRE(state);
    const bool first = !state->cluster_id;
    if (!first) {
      REQUIRE(dump(*state) == dump(rig_.core->state()));
    }
    rig_.start(std::move(*state));
    REQUIRE(store_->begin(rig_.core->info()));
    REQUIRE(rig_.core->info().term == term_ + 1);
    term_ = rig_.core->info().term;
    fresh_copy_ = true;
    take();
    copy_ = View{rig_.core->view().snapshot()};
  }

  void join(Process& process) {
    if (!process.running) {
      replace(process);
    }
    JoinRequest request = rig_.join_request(process.number);
    request.member.name = "n" + std::to_string(process.number);
    request.member.address = address(slot_of(process));
    const auto kind = random_.below(4);
    request.member.incarnation =
        kind == 0 ? 0 : process.incarnation + (kind == 1 ? random_.below(2) : 0);
    if (request.member.incarnation == 0) {
      process.hosts.clear();  // a node stops everything before it joins anew
      process.incarnation = 0;
    }
    const auto reply = rig_.core->join(request, rig_.now);
    if (reply.code == ec::none) {
      process.incarnation = reply.incarnation;
      process.view = View{reply.snapshot};
      process.contact = rig_.now.steady;
      REQUIRE(process.view.hash() == rig_.core->view().hash());
    } else if (request.member.incarnation == process.incarnation) {
      REQUIRE(reply.code == ec::session_lost);  // nobody else's process listens at its address
      process.hosts.clear();
      process.incarnation = 0;
    }
  }

  void sync(Process& process) {
    if (!process.running || process.incarnation == 0) {
      return;
    }
    const auto reply = rig_.core->sync({node(process.number), process.incarnation,
                                        process.view.broker().term, process.view.epoch()},
                                       rig_.now);
    if (reply.code != ec::none) {
      REQUIRE(reply.code == ec::session_lost);
      process.hosts.clear();
      process.incarnation = 0;
      return;
    }
    process.contact = rig_.now.steady;
    if (!reply.snapshot.empty()) {
      process.view = View{reply.snapshot[0]};
    } else if (reply.delta.base != reply.delta.epoch) {
      REQUIRE(process.view.apply(reply.delta) == View::Applied::yes);
    }
    REQUIRE(process.view.hash() == rig_.core->view().hash());
  }

  /// Anybody may wrongly believe that another is silent, but only one of them all believes that a living
  /// process is gone: that nothing listens at its address is a fact that others see as well.
  void observe() {
    const auto& observer = processes_[random_.below(slots)];
    const auto& subject = processes_[random_.below(slots)];
    if (!observer.running) {
      return;
    }
    auto what = static_cast<Observed>(random_.below(3));
    if (what == Observed::gone && subject.running && slot_of(observer) != 1) {
      what = Observed::suspect;
    }
    rig_.core->observe(
        {node(observer.number), observer.incarnation, node(subject.number),
         subject.running ? subject.incarnation : rig_.incarnation(subject.number), what, "random"},
        rig_.now);
  }

  void expire_leases() {
    for (auto& process : processes_) {
      if (rig_.now.steady >= process.contact + rig_.config.times.lease) {
        process.hosts.clear();
      }
    }
  }

  void claim_or_release(Process& process) {
    if (!process.running || process.incarnation == 0) {
      return;
    }
    expire_leases();
    const auto number = random_.below(path_count);
    const auto path = "path/" + std::to_string(number);
    const bool exclusive = number % 2 == 0;
    if (const auto mine = process.hosts.find(path);
        mine != process.hosts.end() && random_.below(2) == 0) {
      REQUIRE(rig_.core->release({path, node(process.number), mine->second}, rig_.now).code ==
              ec::none);
      process.hosts.erase(mine);
      return;
    }
    const auto held = process.hosts.find(path);
    const bool confirms = held != process.hosts.end() && random_.below(2) == 0;
    const auto reply = rig_.core->claim(
        {path, node(process.number), process.incarnation, exclusive, confirms ? held->second : 0},
        rig_.now);
    // Who still hosts it as far as the rules let it know is told so, unless it has been fenced by now.
    REQUIRE((!confirms || reply.code == ec::none || reply.code == ec::session_lost));
    if (reply.code != ec::none) {
      return;
    }
    REQUIRE(reply.entry.node == node(process.number));
    process.contact = rig_.now.steady;
    if (exclusive) {
      for (const auto& other : processes_) {
        INFO(path << " of " << process.number << " and " << other.number);
        REQUIRE((&other == &process || other.hosts.count(path) == 0));
      }
      process.hosts[path] = reply.entry.generation;
      ++grants_;
    }
  }

  void leave(Process& process) {
    if (!process.running || process.incarnation == 0 || is_head(process)) {
      return;
    }
    process.hosts.clear();
    rig_.core->leave({node(process.number), process.incarnation, "random"}, rig_.now);
    process.running = false;
  }

  void take() {
    const auto batch = rig_.core->take_batch();
    REQUIRE(store_->commit(batch));
    REQUIRE_FALSE(rig_.core->has_changes());
    for (const auto& event : batch.events) {
      REQUIRE(event.seq == last_seq_ + 1);
      last_seq_ = event.seq;
      downs_ += event.what == "down" ? 1 : 0;
    }
    REQUIRE(batch.delta.base == epoch_);
    REQUIRE(batch.delta.epoch >= epoch_);
    check_changes(batch.delta);
    epoch_ = batch.delta.epoch;
    if (!fresh_copy_ && batch.delta.base != batch.delta.epoch) {
      REQUIRE(copy_.apply(batch.delta) == View::Applied::yes);
    }
    if (!fresh_copy_) {
      REQUIRE(copy_.hash() == rig_.core->view().hash());
    }
    fresh_copy_ = false;
    for (const auto& entry : batch.directory) {
      auto& generation = generations_[entry.path];
      REQUIRE(entry.generation >= generation);
      auto& holder = holders_[entry.path];
      // Another holder always means a greater generation.
      if (entry.node && entry.incarnation != holder) {
        REQUIRE(entry.generation > generation);
        holder = entry.incarnation;
      }
      generation = entry.generation;
      REQUIRE(entry.epoch > directory_epoch_);
      REQUIRE(entry.epoch <= batch.directory_epoch);
    }
    directory_epoch_ = batch.directory_epoch;
  }

  void check_changes(const ViewDelta& delta) {
    std::set<std::uint64_t> epochs;
    std::set<std::uint64_t> incarnations;
    for (const auto& member : delta.changed) {
      REQUIRE(member.epoch > delta.base);
      REQUIRE(member.epoch <= delta.epoch);
      REQUIRE(epochs.insert(member.epoch).second);
      REQUIRE(incarnations.insert(member.incarnation).second);
      REQUIRE(ended_.count(member.incarnation) == 0);
      const auto [it, added] = known_.try_emplace(member.incarnation, member);
      if (added) {
        REQUIRE(member.incarnation > greatest_incarnation_);
        greatest_incarnation_ = member.incarnation;
      }
      it->second = member;
      if (!is_live(member.state)) {
        ended_.insert(member.incarnation);
        known_.erase(it);
      }
    }
  }

  void check() {
    rig_.core->tick(rig_.now);
    const auto due = rig_.core->next_deadline();
    REQUIRE((!due || *due > rig_.now.steady));
    take();
    std::set<std::string> addresses;
    for (const auto& [id, member] : rig_.core->view().live()) {
      REQUIRE(id == member.id);
      REQUIRE(is_live(member.state));
      REQUIRE(addresses.insert(member.address).second);
      REQUIRE(ended_.count(member.incarnation) == 0);
      REQUIRE(member.head == (id == rig_.config.self));
    }
    const auto state = rig_.core->state();
    REQUIRE(state.tombstones.size() <= rig_.config.max_tombstones);
    for (const auto& tombstone : state.tombstones) {
      REQUIRE(rig_.core->view().find(tombstone.node, tombstone.incarnation) == nullptr);
    }
    for (const auto& entry : state.directory) {
      const bool live = rig_.core->view().find(entry.node, entry.incarnation) != nullptr;
      REQUIRE((!entry.node || live || (entry.exclusive && ended_.count(entry.incarnation) != 0)));
    }
    if (++checks_ % 32 == 0) {
      const auto stored = store_->load();
      REQUIRE(stored);
      REQUIRE(dump(*stored) == dump(state));
    }
  }

  PhiloxStream random_;
  std::unique_ptr<BrokerStore> store_;
  Rig rig_;
  std::array<Process, slots> processes_;
  std::uint64_t next_number_ = 1;

  View copy_;
  bool fresh_copy_ = true;
  std::uint64_t term_ = 0;
  std::uint64_t epoch_ = 0;
  std::uint64_t directory_epoch_ = 0;
  std::uint64_t last_seq_ = 0;
  std::uint64_t greatest_incarnation_ = 0;
  std::map<std::uint64_t, Member> known_;
  std::set<std::uint64_t> ended_;
  std::map<std::string, std::uint64_t> generations_;
  std::map<std::string, std::uint64_t> holders_;
  std::uint64_t grants_ = 0;
  std::uint64_t downs_ = 0;
  std::uint64_t checks_ = 0;
};

}  // namespace

TEST_CASE("the rules hold over random histories", "[broker]") {
  const auto seed = test_seed("random histories");
  for (std::uint64_t round = 0; round < 6; ++round) {
    World world{seed + round};
    for (int i = 0; i < 4'000; ++i) {
      INFO("round " << round << ", step " << i);
      world.step();
    }
    // The history has been one of the kind it is meant to be.
    UNSCOPED_INFO(world.grants() << " grants, " << world.downs() << " downs");
    CHECK(world.grants() > 100);
    CHECK(world.downs() > 50);
  }
}
