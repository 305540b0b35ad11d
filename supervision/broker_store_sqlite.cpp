#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/codec.hpp"
#include "net/codec_containers.hpp"
#include "supervision/broker_store.hpp"
#include "supervision/broker_store_limits.hpp"
#include "supervision/sqlite.hpp"

namespace troupe {

namespace {

/// "TRPM", in the file's header: whose database it is.
constexpr std::uint32_t application_id = 0x5452504DU;
constexpr std::uint32_t schema_version = 1;

constexpr const char* schema = R"(
CREATE TABLE head (
  id INTEGER PRIMARY KEY CHECK (id = 0),
  cluster TEXT NOT NULL, cluster_id BLOB NOT NULL, term INTEGER NOT NULL, broker BLOB NOT NULL,
  epoch INTEGER NOT NULL, next_incarnation INTEGER NOT NULL, next_event INTEGER NOT NULL,
  directory_epoch INTEGER NOT NULL);
CREATE TABLE member (
  incarnation INTEGER PRIMARY KEY, node BLOB NOT NULL, live INTEGER NOT NULL, epoch INTEGER NOT NULL,
  record BLOB NOT NULL);
CREATE INDEX member_by_epoch ON member (live, epoch);
CREATE TABLE tombstone (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, incarnation INTEGER NOT NULL UNIQUE, node BLOB NOT NULL,
  replaced INTEGER NOT NULL, time_ms INTEGER NOT NULL, reason TEXT NOT NULL);
CREATE TABLE path (
  path TEXT PRIMARY KEY, node BLOB NOT NULL, incarnation INTEGER NOT NULL, address TEXT NOT NULL,
  exclusive INTEGER NOT NULL, generation INTEGER NOT NULL, epoch INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE event (
  seq INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, epoch INTEGER NOT NULL, node BLOB NOT NULL,
  incarnation INTEGER NOT NULL, name TEXT NOT NULL, address TEXT NOT NULL, what TEXT NOT NULL,
  reason TEXT NOT NULL);
INSERT INTO head VALUES (0, '', zeroblob(16), 0, zeroblob(16), 0, 1, 1, 0);
)";

error system_failure(const std::string& what, const std::filesystem::path& path, int number) {
  return {ec::system_error, "cannot " + what + " " + path.string() + ": " +
                                std::generic_category().message(number) +
                                "; the data folder must be writable for this user"};
}

/// The lock on a data folder: held by the open file, so the kernel gives it back when the process dies.
class FolderLock {
 public:
  FolderLock() = default;
  FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FolderLock() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }

  static expected<FolderLock> take(const std::filesystem::path& folder);

 private:
  int fd_ = -1;
};

/// Who has just taken the lock writes its pid a moment later.
std::string holder(int fd) {
  constexpr int tries = 20;
  constexpr std::chrono::milliseconds pause{10};
  std::string pid;
  for (int i = 0; i < tries && pid.empty(); ++i) {
    if (i > 0) {
      std::this_thread::sleep_for(pause);
    }
    std::array<char, 24> text{};
    const auto size = ::pread(fd, text.data(), text.size() - 1, 0);
    pid.assign(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
    pid.erase(std::find_if(pid.begin(), pid.end(), [](char c) { return c < '0' || c > '9'; }),
              pid.end());
  }
  return pid.empty() ? "another process" : "process " + pid;
}

expected<FolderLock> FolderLock::take(const std::filesystem::path& folder) {
  const auto path = folder / "lock";
  FolderLock lock;
  lock.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock.fd_ < 0) {
    return fail(system_failure("open", path, errno));
  }
  int result = 0;
  do {
    result = ::flock(lock.fd_, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    if (errno != EWOULDBLOCK) {
      return fail(system_failure("lock", path, errno));
    }
    return fail(ec::conflict, "the data folder " + folder.string() + " is in use by " +
                                  holder(lock.fd_) +
                                  "; stop that process or give another folder (--data)");
  }
  const auto pid = std::to_string(::getpid()) + "\n";
  // Only for the text above, so it may fail.
  if (::ftruncate(lock.fd_, 0) != 0 ||
      ::pwrite(lock.fd_, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    errno = 0;
  }
  return lock;
}

error not_ours(const std::filesystem::path& path, const std::string& why) {
  return {ec::malformed, path.string() + " is not a membership database of this program: " + why +
                             "; nothing was changed, move the file away or give another folder"};
}

error check_identity(const std::filesystem::path& path, std::uint32_t id, std::uint32_t version) {
  if (id != application_id) {
    return not_ours(path, "it belongs to another application");
  }
  if (version != schema_version) {
    return not_ours(path, "its format has version " + std::to_string(version) +
                              ", this program knows version " + std::to_string(schema_version));
  }
  return {};
}

/// Looks at the file's header without SQLite, which would write to a foreign database when it has a log.
error check_header(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return {};
  }
  if (!std::filesystem::is_regular_file(path, ignored)) {
    return not_ours(path, "it is no regular file");
  }
  // Half-made databases are SQLite's to roll back.
  if (std::filesystem::file_size(path, ignored) == 0 ||
      std::filesystem::exists(path.string() + "-journal", ignored)) {
    return {};
  }
  std::array<unsigned char, 100> header{};
  std::ifstream in{path, std::ios::binary};
  in.read(reinterpret_cast<char*>(header.data()), header.size());
  if (!in.is_open()) {
    return system_failure("read", path, errno);
  }
  if (in.gcount() != static_cast<std::streamsize>(header.size()) ||
      std::memcmp(header.data(), "SQLite format 3", 16) != 0) {
    return not_ours(path, "it is no SQLite database");
  }
  const auto word = [&](std::size_t at) {
    return (std::uint32_t{header[at]} << 24U) | (std::uint32_t{header[at + 1]} << 16U) |
           (std::uint32_t{header[at + 2]} << 8U) | std::uint32_t{header[at + 3]};
  };
  return check_identity(path, word(68), word(60));
}

expected<void> prepare_schema(sqlite::Database& db, const std::filesystem::path& path) {
  // Exclusive: no shared memory file, so that any file system will do. FULL: a commit is on the disk.
  if (!db.execute("PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = FULL;"
                  "PRAGMA trusted_schema = OFF; PRAGMA journal_size_limit = 16777216")) {
    return fail(db.failure("set up"));
  }
  // Again by SQL: changes that are still in the log do not show in the header.
  db.leave_log_alone(true);
  const auto tables = db.ask("SELECT count(*) FROM sqlite_master");
  const auto id = db.ask("PRAGMA application_id");
  const auto version = db.ask("PRAGMA user_version");
  if (!tables || !id || !version) {
    return fail(db.failure("read"));
  }
  if (*tables == "0" && *id == "0" && *version == "0") {
    const auto make = "BEGIN EXCLUSIVE;" + std::string{schema} +
                      "PRAGMA application_id = " + std::to_string(application_id) +
                      "; PRAGMA user_version = " + std::to_string(schema_version) + "; COMMIT";
    if (!db.execute(make.c_str())) {
      return fail(db.failure("make"));
    }
  } else if (error err = check_identity(path, static_cast<std::uint32_t>(std::stoll(*id)),
                                        static_cast<std::uint32_t>(std::stoll(*version)))) {
    return fail(std::move(err));
  }
  db.leave_log_alone(false);
  if (db.ask("PRAGMA journal_mode = WAL") != "wal") {
    return fail(db.failure("switch to write-ahead logging"));
  }
  return {};
}

std::vector<std::byte> pack(const Member& member) {
  net::EncodedBody body;
  // Encoding plain values into memory cannot fail; an empty record would be refused when it is read.
  if (net::encode_value(member, body)) {
    return {};
  }
  return body.flatten();
}

class SqliteStore final : public BrokerStore {
 public:
  SqliteStore(FolderLock lock, sqlite::Database db, std::filesystem::path path)
      : lock_(std::move(lock)), db_(std::move(db)), path_(std::move(path)) {
    prepare();
  }

  expected<BrokerState> load() override {
    BrokerState state;
    // One transaction: all tables as of the same commit.
    const bool loaded = db_.execute("BEGIN") && load_head(state) && load_members(state) &&
                        load_tombstones(state) && load_directory(state);
    auto result = loaded ? expected<BrokerState>{std::move(state)} : fail(read_failure());
    db_.execute("COMMIT");
    return result;
  }

  expected<void> begin(const BrokerInfo& broker) override {
    auto statement = db_.prepare(
        "UPDATE head SET cluster = ?, cluster_id = ?, term = ?, broker = ? WHERE id = 0");
    statement.text(broker.cluster).node(broker.cluster_id).number(broker.term).node(broker.broker);
    if (!statement.run()) {
      return fail(db_.failure("store the term in"));
    }
    return {};
  }

  expected<void> commit(const BrokerBatch& batch) override {
    if (db_.execute("BEGIN IMMEDIATE") && write(batch) && db_.execute("COMMIT")) {
      return {};
    }
    auto err = db_.failure("store changes of the membership in");
    if (db_.in_transaction()) {
      db_.execute("ROLLBACK");
    }
    return fail(std::move(err));
  }

  expected<std::vector<MemberEvent>> events(std::uint64_t after_seq, std::uint32_t limit) override;

 private:
  void prepare();
  bool write(const BrokerBatch& batch);
  bool write_members(const std::vector<Member>& members);
  bool write_tombstones(const BrokerBatch& batch);
  bool write_directory(const BrokerBatch& batch);
  bool write_events(const std::vector<MemberEvent>& events);
  bool load_head(BrokerState& state);
  bool load_members(BrokerState& state);
  bool load_tombstones(BrokerState& state);
  bool load_directory(BrokerState& state);

  error read_failure() {
    if (!damage_.empty()) {
      return {ec::malformed, path_.string() + " is damaged: " + damage_};
    }
    return db_.failure("read");
  }

  FolderLock lock_;
  sqlite::Database db_;  // closed before the lock goes
  std::filesystem::path path_;
  std::string damage_;
  sqlite::Statement put_head_, put_member_, trim_members_, put_tombstone_, drop_tombstone_,
      put_path_, drop_path_, put_event_, trim_events_;
};

void SqliteStore::prepare() {
  put_head_ = db_.prepare(
      "UPDATE head SET epoch = ?, next_incarnation = ?, next_event = ?, directory_epoch = ? WHERE "
      "id = 0");
  put_member_ = db_.prepare(
      "INSERT OR REPLACE INTO member (incarnation, node, live, epoch, record) VALUES (?, ?, ?, ?, "
      "?)");
  trim_members_ = db_.prepare(
      "DELETE FROM member WHERE live = 0 AND epoch <="
      " (SELECT epoch FROM member WHERE live = 0 ORDER BY epoch DESC LIMIT 1 OFFSET ?)");
  put_tombstone_ = db_.prepare(
      "INSERT INTO tombstone (incarnation, node, replaced, time_ms, reason) VALUES (?, ?, ?, ?, ?)"
      " ON CONFLICT (incarnation) DO UPDATE SET node = excluded.node, replaced = excluded.replaced,"
      " time_ms = excluded.time_ms, reason = excluded.reason");
  drop_tombstone_ = db_.prepare("DELETE FROM tombstone WHERE incarnation = ?");
  put_path_ = db_.prepare("INSERT OR REPLACE INTO path VALUES (?, ?, ?, ?, ?, ?, ?)");
  drop_path_ = db_.prepare("DELETE FROM path WHERE path = ?");
  put_event_ = db_.prepare("INSERT OR REPLACE INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)");
  trim_events_ = db_.prepare("DELETE FROM event WHERE seq <= ?");
}

bool SqliteStore::write(const BrokerBatch& batch) {
  return put_head_.number(batch.epoch)
             .number(batch.next_incarnation)
             .number(batch.next_event)
             .number(batch.directory_epoch)
             .run() &&
         write_members(batch.delta.changed) && write_tombstones(batch) && write_directory(batch) &&
         write_events(batch.events);
}

bool SqliteStore::write_members(const std::vector<Member>& members) {
  bool ended = false;
  for (const auto& member : members) {
    const bool alive = is_live(member.state);
    ended |= !alive;
    put_member_.number(member.incarnation).node(member.id).number(alive ? 1 : 0);
    if (!put_member_.number(member.epoch).blob(pack(member)).run()) {
      return false;
    }
  }
  return !ended || trim_members_.number(View::kept_ended).run();
}

bool SqliteStore::write_tombstones(const BrokerBatch& batch) {
  for (const auto& tombstone : batch.tombstones) {
    put_tombstone_.number(tombstone.incarnation).node(tombstone.node);
    put_tombstone_.number(tombstone.replaced ? 1 : 0).signed_number(tombstone.time_ms);
    if (!put_tombstone_.text(tombstone.reason).run()) {
      return false;
    }
  }
  return std::all_of(batch.forgotten.begin(), batch.forgotten.end(), [&](const Tombstone& gone) {
    return drop_tombstone_.number(gone.incarnation).run();
  });
}

bool SqliteStore::write_directory(const BrokerBatch& batch) {
  for (const auto& path : batch.removed_paths) {
    if (!drop_path_.text(path).run()) {
      return false;
    }
  }
  for (const auto& entry : batch.directory) {
    put_path_.text(entry.path).node(entry.node).number(entry.incarnation).text(entry.address);
    if (!put_path_.number(entry.exclusive ? 1 : 0)
             .number(entry.generation)
             .number(entry.epoch)
             .run()) {
      return false;
    }
  }
  return true;
}

bool SqliteStore::write_events(const std::vector<MemberEvent>& events) {
  for (const auto& event : events) {
    put_event_.number(event.seq).signed_number(event.time_ms).number(event.epoch).node(event.node);
    put_event_.number(event.incarnation).text(event.name).text(event.address);
    if (!put_event_.text(event.what).text(event.reason).run()) {
      return false;
    }
  }
  if (events.empty() || events.back().seq <= kept_events) {
    return true;
  }
  return trim_events_.number(events.back().seq - kept_events).run();
}

bool SqliteStore::load_head(BrokerState& state) {
  auto statement = db_.prepare(
      "SELECT cluster, cluster_id, term, broker, epoch, next_incarnation, next_event, "
      "directory_epoch"
      " FROM head WHERE id = 0");
  if (!statement.step()) {
    if (statement.done()) {
      damage_ = "it has no head row";
    }
    return false;
  }
  state.cluster = statement.get_text();
  state.cluster_id = statement.get_node();
  state.term = statement.get_number();
  state.broker = statement.get_node();
  state.epoch = statement.get_number();
  state.next_incarnation = statement.get_number();
  state.next_event = statement.get_number();
  state.directory_epoch = statement.get_number();
  return true;
}

bool SqliteStore::load_members(BrokerState& state) {
  // As a view has them: live ones by id, then the ended ones from the oldest on.
  auto statement = db_.prepare(
      "SELECT incarnation, record FROM member"
      " ORDER BY live DESC, CASE live WHEN 1 THEN node END, epoch");
  while (statement.step()) {
    const auto incarnation = statement.get_number();
    const auto bytes = statement.get_blob();
    auto member = net::decode_value<Member>(bytes);
    if (!member || member->incarnation != incarnation) {
      damage_ = "the record of member " + std::to_string(incarnation) + " cannot be read";
      return false;
    }
    state.members.push_back(std::move(*member));
  }
  return statement.done();
}

bool SqliteStore::load_tombstones(BrokerState& state) {
  auto statement = db_.prepare(
      "SELECT node, incarnation, replaced, time_ms, reason FROM tombstone ORDER BY seq");
  while (statement.step()) {
    Tombstone tombstone;
    tombstone.node = statement.get_node();
    tombstone.incarnation = statement.get_number();
    tombstone.replaced = statement.get_number() != 0;
    tombstone.time_ms = statement.get_signed();
    tombstone.reason = statement.get_text();
    state.tombstones.push_back(std::move(tombstone));
  }
  return statement.done();
}

bool SqliteStore::load_directory(BrokerState& state) {
  auto statement = db_.prepare(
      "SELECT path, node, incarnation, address, exclusive, generation, epoch FROM path ORDER BY "
      "path");
  while (statement.step()) {
    DirectoryEntry entry;
    entry.path = statement.get_text();
    entry.node = statement.get_node();
    entry.incarnation = statement.get_number();
    entry.address = statement.get_text();
    entry.exclusive = statement.get_number() != 0;
    entry.generation = statement.get_number();
    entry.epoch = statement.get_number();
    state.directory.push_back(std::move(entry));
  }
  return statement.done();
}

expected<std::vector<MemberEvent>> SqliteStore::events(std::uint64_t after_seq,
                                                       std::uint32_t limit) {
  const bool newest = after_seq == 0;
  auto statement =
      db_.prepare(std::string{"SELECT seq, time_ms, epoch, node, incarnation, name, address,"
                              " what, reason FROM event WHERE seq > ? ORDER BY seq "} +
                  (newest ? "DESC" : "ASC") + " LIMIT ?");
  // Stored numbers are signed: nothing can come after the greatest.
  constexpr auto greatest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  statement.number(std::min(after_seq, greatest)).number(limit);
  std::vector<MemberEvent> result;
  while (statement.step()) {
    MemberEvent event;
    event.seq = statement.get_number();
    event.time_ms = statement.get_signed();
    event.epoch = statement.get_number();
    event.node = statement.get_node();
    event.incarnation = statement.get_number();
    event.name = statement.get_text();
    event.address = statement.get_text();
    event.what = statement.get_text();
    event.reason = statement.get_text();
    result.push_back(std::move(event));
  }
  if (!statement.done()) {
    return fail(db_.failure("read the history in"));
  }
  if (newest) {
    std::reverse(result.begin(), result.end());
  }
  return result;
}

}  // namespace

expected<std::unique_ptr<BrokerStore>> open_sqlite_store(const std::string& folder) {
  const std::filesystem::path where{folder};
  std::error_code failed;
  std::filesystem::create_directories(where, failed);
  if (failed) {
    return fail(system_failure("make the data folder", where, failed.value()));
  }
  auto lock = FolderLock::take(where);
  if (!lock) {
    return fail(lock.error());
  }
  const auto path = where / "membership.db";
  if (error err = check_header(path)) {
    return fail(std::move(err));
  }
  auto db = sqlite::Database::open(path.string());
  if (!db) {
    return fail(db.error());
  }
  if (auto ready = prepare_schema(*db, path); !ready) {
    return fail(ready.error());
  }
  return std::make_unique<SqliteStore>(std::move(*lock), std::move(*db), path);
}

}  // namespace troupe
