// What the head keeps on its disk, and what is left of it when the process or the disk fails.
#include "supervision/broker_store.hpp"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "supervision/sqlite.hpp"
#include "tests/support/process.hpp"
#include "tests/unit/broker_core_support.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "troupe-store-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  fs::path data() const { return path_ / "data"; }
  fs::path database() const { return data() / "membership.db"; }

 private:
  fs::path path_;
};

std::string content(const fs::path& path) {
  std::ifstream in{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream{path, std::ios::binary} << text;
}

std::unique_ptr<BrokerStore> open(const fs::path& folder) {
  auto store = open_sqlite_store(folder.string());
  INFO((store ? "" : to_string(store.error())));
  REQUIRE(store);
  return std::move(*store);
}

error open_error(const fs::path& folder) {
  auto store = open_sqlite_store(folder.string());
  REQUIRE_FALSE(store);
  return store.error();
}

/// A process of its own that ends without any clean-up. What it reports comes line by line.
class Child {
 public:
  using Report = std::function<void(const std::string&)>;

  explicit Child(const std::function<void(const Report&)>& run) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::close(ends[0]);
      run([&](const std::string& line) {
        const auto text = line + "\n";
        if (::write(ends[1], text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
          ::_exit(2);
        }
      });
      ::_exit(0);
    }
    ::close(ends[1]);
    from_ = ::fdopen(ends[0], "r");
  }
  ~Child() {
    kill();
    std::fclose(from_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// The next line, or "" at the end.
  std::string line() {
    std::string text;
    for (int c = std::fgetc(from_); c != EOF && c != '\n'; c = std::fgetc(from_)) {
      text += static_cast<char>(c);
    }
    return text;
  }

  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = 0;
    }
  }

 private:
  pid_t pid_ = 0;
  std::FILE* from_ = nullptr;
};

/// A broker with its store: takes over what the store has, and stores each batch.
class Stored {
 public:
  Stored(BrokerStore& store, std::uint64_t self) : store_(store) {
    auto state = store.load();
    ok_ = state.has_value();
    rig.config.self = node(self);
    rig.config.address = Rig::address(self);
    rig.start(ok_ ? std::move(*state) : BrokerState{});
    ok_ = ok_ && store.begin(rig.core->info());
  }
  bool commit() {
    const auto batch = rig.core->take_batch();
    return ok_ && store_.commit(batch);
  }

  Rig rig;

 private:
  BrokerStore& store_;
  bool ok_;
};

/// All kinds of entries, with texts that are hard to quote.
void live_a_little(Stored& stored, std::uint64_t first) {
  auto& rig = stored.rig;
  rig.up(first, first + 4);
  auto request = rig.join_request(first + 5);
  request.member.name = "Robert'); DROP TABLE member;--";
  request.member.host = "\xFF\xFE not UTF-8";
  request.member.resources = {{"inf", std::numeric_limits<double>::infinity()}, {"tiny", 5e-324}};
  request.member.labels = {{"", ""}, {"\xC3\xA4", std::string("a\0b", 3)}};
  rig.core->join(request, rig.now);
  REQUIRE(stored.commit());
  rig.claim(first + 1, "exclusive/" + std::to_string(first), true);
  rig.claim(first + 2, "plain'\"/" + std::to_string(first), false);
  rig.say(first, first + 1, Observed::suspect, "silent");
  rig.say(first, first + 2, Observed::gone, "refused");
  rig.say(first + 3, first + 2, Observed::gone, "refused");
  REQUIRE(stored.commit());
  rig.core->drain({"node-" + std::to_string(first + 3), 0, "up\ndate"}, rig.now);
  rig.core->leave({node(first + 4), rig.incarnation(first + 4), ""}, rig.now);
  auto replacement = rig.join_request(first + 6);
  replacement.member.address = Rig::address(first + 3);
  rig.core->join(replacement, rig.now);
  rig.core->resolve({"unclaimed", node(first)}, rig.now);
  REQUIRE(stored.commit());
}

}  // namespace

TEST_CASE("everything comes back from the store", "[store]") {
  const Folder folder;
  const bool durable = GENERATE(true, false);
  auto store = durable ? open(folder.data()) : make_memory_store();
  const auto empty = store->load();
  REQUIRE(empty);
  CHECK(dump(*empty) == dump(BrokerState{}));
  CHECK(store->events(0, 10)->empty());

  for (std::uint64_t term = 1; term <= 3; ++term) {
    Stored stored{*store, term * 100};
    CHECK(stored.rig.core->info().term == term);
    CHECK(stored.rig.core->info().cluster_id == NodeId{7, 7});
    live_a_little(stored, term * 100);
    if (durable) {
      store.reset();
      store = open(folder.data());
    }
    const auto state = store->load();
    REQUIRE(state);
    CHECK(dump(*state) == dump(stored.rig.core->state()));
    CHECK(state->members.back().state != MemberState::up);
  }
}

TEST_CASE("a store keeps as many ended members and tombstones as the core", "[store]") {
  const Folder folder;
  const auto store = GENERATE(true, false) ? open(folder.data()) : make_memory_store();
  Stored stored{*store, 1};
  auto& rig = stored.rig;
  rig.config.max_tombstones = 80;
  rig.start({});
  REQUIRE(stored.commit());
  for (int i = 0; i < 150; ++i) {
    rig.up(2, 2);
    if (i % 7 == 0) {
      REQUIRE(stored.commit());
    }
  }
  REQUIRE(stored.commit());
  auto state = store->load();
  REQUIRE(state);
  state->cluster_id = {7, 7};
  CHECK(state->members.size() == 1 + View::kept_ended);
  CHECK(state->tombstones.size() == 80);
  CHECK(dump(*state) == dump(rig.core->state()));
}

TEST_CASE("paths can be removed from a store", "[store]") {
  const Folder folder;
  const auto store = GENERATE(true, false) ? open(folder.data()) : make_memory_store();
  BrokerBatch batch;
  batch.directory = {{"a", {}, 0, "", false, 3, 3}, {"b", node(1), 1, "x:1", true, 4, 4}};
  REQUIRE(store->commit(batch));
  batch.directory.clear();
  batch.removed_paths = {"a", "never there"};
  REQUIRE(store->commit(batch));
  const auto state = store->load();
  REQUIRE(state->directory.size() == 1);
  CHECK(state->directory[0].path == "b");
}

TEST_CASE("the history is in order and of limited length", "[store]") {
  const Folder folder;
  const auto store = GENERATE(true, false) ? open(folder.data()) : make_memory_store();
  constexpr std::uint64_t total = 100'250;
  BrokerBatch batch;
  for (std::uint64_t seq = 1; seq <= total; ++seq) {
    batch.events.push_back({seq, static_cast<std::int64_t>(seq) - 5, seq * 2, node(seq), seq,
                            "name", "host:1", "up", "because"});
    if (seq % 25'000 == 0 || seq == total) {
      REQUIRE(store->commit(batch));
      batch.events.clear();
    }
  }
  const auto range = [&](std::uint64_t after, std::uint32_t limit) {
    const auto events = store->events(after, limit);
    REQUIRE(events);
    for (std::size_t i = 1; i < events->size(); ++i) {
      REQUIRE((*events)[i].seq == (*events)[i - 1].seq + 1);
    }
    return events->empty() ? std::pair<std::uint64_t, std::uint64_t>{0, 0}
                           : std::pair{events->front().seq, events->back().seq};
  };
  CHECK(range(0, 10) == std::pair{total - 9, total});
  CHECK(range(0, 4'000'000'000U) == std::pair{total - 99'999, total});
  CHECK(range(1, 5) == std::pair{total - 99'999, total - 99'995});
  CHECK(range(total - 3, 10) == std::pair{total - 2, total});
  CHECK(range(total, 10).first == 0);
  CHECK(range(std::numeric_limits<std::uint64_t>::max(), 10).first == 0);
  CHECK(range(0, 0).first == 0);
  const auto one = store->events(total - 1, 1);
  REQUIRE(one->size() == 1);
  CHECK(dump(one->front()) == dump(MemberEvent{total, total - 5, total * 2, node(total), total,
                                               "name", "host:1", "up", "because"}));
}

TEST_CASE("a broker that is killed leaves the last acknowledged state or a later one", "[store]") {
  const Folder folder;
  const auto seed = test_seed("killed brokers");
  std::uint64_t acknowledged = 0;
  std::uint64_t events = 0;
  for (std::uint64_t round = 1; round <= 8; ++round) {
    Child child{[&](const Child::Report& report) {
      auto store = open_sqlite_store(folder.data().string());
      if (!store) {
        report("failed " + to_string(store.error()));
        return;
      }
      Stored stored{**store, round * 1'000};
      for (std::uint64_t n = 1; stored.commit(); ++n) {
        report(std::to_string(stored.rig.core->view().epoch()));
        stored.rig.join(round * 1'000 + n);
        stored.rig.claim(round * 1'000 + n, "path/" + std::to_string(n % 50), false);
      }
    }};
    // At another moment each time, in the midst of its work.
    const auto commits = 1 + (seed + round * 7) % 40;
    for (std::uint64_t i = 0; i < commits; ++i) {
      const auto line = child.line();
      INFO(line);
      REQUIRE(line.find_first_not_of("0123456789") == std::string::npos);
      REQUIRE_FALSE(line.empty());
      const auto epoch = std::stoull(line);
      REQUIRE(epoch >= acknowledged);
      acknowledged = epoch;
    }
    child.kill();

    const auto store = open(folder.data());
    const auto state = store->load();
    REQUIRE(state);
    CHECK(state->term == round);
    CHECK(state->epoch >= acknowledged);
    acknowledged = state->epoch;
    for (const auto& member : state->members) {
      CHECK(member.epoch <= state->epoch);
      CHECK(member.incarnation < state->next_incarnation);
    }
    for (const auto& entry : state->directory) {
      CHECK(entry.epoch <= state->directory_epoch);
    }
    const auto history = store->events(0, 100'000);
    REQUIRE(history);
    CHECK(history->size() == state->next_event - 1);
    CHECK(history->size() > events);
    events = history->size();
  }
}

TEST_CASE("a data folder has one owner", "[store]") {
  const Folder folder;
  SECTION("in another process") {
    Child owner{[&](const Child::Report& report) {
      const auto store = open_sqlite_store(folder.data().string());
      report(store ? std::to_string(::getpid()) : to_string(store.error()));
      ::pause();
    }};
    const auto pid = owner.line();
    const auto err = open_error(folder.data());
    CHECK(err == ec::conflict);
    CHECK_THAT(err.text(), Catch::Contains("in use by process " + pid + ";"));
    owner.kill();
    open(folder.data());  // the kernel gave the lock back
  }
  SECTION("in the same process") {
    auto store = open(folder.data());
    const auto err = open_error(folder.data());
    CHECK(err == ec::conflict);
    CHECK_THAT(err.text(), Catch::Contains("process " + std::to_string(::getpid()) + ";"));
    store.reset();
    open(folder.data());
  }
}

TEST_CASE("files that are not ours are left as they are", "[store]") {
  const Folder folder;
  const auto file = folder.database();
  const std::string log = file.string() + "-wal";
  std::string expected_text = "not a membership database of this program";
  SECTION("no database") { write(file, std::string(5'000, 'x')); }
  SECTION("too short for one") { write(file, "SQLite format 3"); }
  SECTION("a folder") { fs::create_directories(file); }
  SECTION("of another application") {
    fs::create_directories(folder.data());
    auto db = sqlite::Database::open(file.string());
    REQUIRE(db);
    REQUIRE(db->execute("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)"));
    if (GENERATE(false, true)) {
      REQUIRE(db->ask("PRAGMA journal_mode = WAL") == "wal");
      REQUIRE(db->execute("INSERT INTO theirs VALUES (2)"));
      db->leave_log_alone(true);
    }
  }
  SECTION("of a later version") {
    open(folder.data());
    auto db = sqlite::Database::open(file.string());
    REQUIRE(db);
    // Once also with the new number in the log alone, where the header does not show it.
    db->leave_log_alone(GENERATE(false, true));
    REQUIRE(db->execute("PRAGMA user_version = 2"));
    expected_text = "version 2, this program knows version 1";
  }
  const bool regular = fs::is_regular_file(file);
  const auto before = regular ? content(file) : "";
  const auto log_before = fs::exists(log) ? content(log) : "";
  const auto err = open_error(folder.data());
  CHECK(err == ec::malformed);
  CHECK_THAT(err.text(), Catch::Contains(expected_text) && Catch::Contains(file.string()));
  if (regular) {
    CHECK((content(file) == before));
  }
  CHECK(((fs::exists(log) ? content(log) : "") == log_before));
}

TEST_CASE("a damaged database is told, not guessed at", "[store]") {
  const Folder folder;
  {
    const auto store = open(folder.data());
    Stored stored{*store, 100};
    live_a_little(stored, 100);
  }
  auto bytes = content(folder.database());
  REQUIRE(bytes.size() > 8'192);
  std::fill(bytes.begin() + 4'096, bytes.end(), '\x5A');
  write(folder.database(), bytes);
  auto store = open_sqlite_store(folder.data().string());
  const auto err = store ? (*store)->load().error() : store.error();
  CHECK(err == ec::malformed);
  CHECK_THAT(err.text(), Catch::Contains("membership.db"));
}

TEST_CASE("a record that cannot be read is told", "[store]") {
  const Folder folder;
  {
    const auto store = open(folder.data());
    Stored stored{*store, 100};
    live_a_little(stored, 100);
  }
  {
    auto db = sqlite::Database::open(folder.database().string());
    REQUIRE(db->execute("UPDATE member SET record = x'00' WHERE incarnation = 2"));
  }
  const auto state = open(folder.data())->load();
  REQUIRE_FALSE(state);
  CHECK(state.error() == ec::malformed);
  CHECK_THAT(state.error().text(), Catch::Contains("record of member 2"));
}

TEST_CASE("a folder that cannot be used", "[store]") {
  const Folder folder;
  fs::path where = "/proc/troupe-store";  // not even root can write there
  SECTION("as there is no such place") {}
  SECTION("as a file is in the way") {
    write(folder.data(), "x");
    where = folder.data();
  }
  SECTION("as it is read-only") {
    fs::create_directories(folder.data());
    fs::permissions(folder.data(), fs::perms::owner_read | fs::perms::owner_exec);
    if (::geteuid() != 0) {
      where = folder.data();
    }
  }
  const auto err = open_error(where);
  CHECK(err == ec::system_error);
  CHECK_THAT(err.text(), Catch::Contains(where.string()) && Catch::Contains("must be writable"));
}

TEST_CASE("a full disk ends a commit, not what was stored before", "[store]") {
  const Folder folder;
  std::string last;
  Child child{[&](const Child::Report& report) {
    // Files that may not grow beyond this stand for a disk that is full.
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{256 * 1024, 256 * 1024};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto store = open_sqlite_store(folder.data().string());
    if (!store) {
      return;
    }
    BrokerBatch batch;
    for (std::uint64_t n = 1; n < 10'000; ++n) {
      batch.epoch = n;
      batch.directory = {{std::string(400, 'x') + std::to_string(n), node(n), n, "", true, n, n}};
      if (auto stored = (*store)->commit(batch); !stored) {
        report("failed " + to_string(stored.error()));
        // It goes on failing, but it does not break.
        report((*store)->commit(batch) ? "stored" : "failed again");
        report(std::to_string((*store)->load()->epoch));
        return;
      }
      report(std::to_string(n));
    }
  }};
  auto line = child.line();
  while (!line.empty() && line.find("failed") == std::string::npos) {
    last = line;
    line = child.line();
  }
  CHECK_THAT(line, Catch::StartsWith("failed system_error: cannot store") &&
                       Catch::Contains(folder.database().string()));
  CHECK(child.line() == "failed again");
  REQUIRE_FALSE(last.empty());
  CHECK(child.line() == last);
  CHECK(child.line().empty());
  child.kill();
  const auto state = open(folder.data())->load();
  REQUIRE(state);
  CHECK(std::to_string(state->epoch) == last);
  CHECK(state->directory.size() == state->epoch);
}
