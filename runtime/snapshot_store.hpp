// Why: a replica's state must outlive its process and its node. A store keeps the newest snapshots of paths on this node,
// own ones and copies for others, so that a torn write or a flipped bit is noticed and an older one serves.
// Thread-safety: any thread; every member may block on the disk, so it is called from a thread made for that.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "net/bytes.hpp"
#include "net/error.hpp"

namespace troupe {

/// Later ones are greater: by incarnation of the replica, then by its own count.
struct SnapshotVersion {
  std::uint64_t incarnation = 0;  ///< 0: no snapshot
  std::uint64_t sequence = 0;
  friend auto operator<=>(const SnapshotVersion&, const SnapshotVersion&) = default;
  explicit operator bool() const noexcept { return incarnation != 0; }
};
template <class Inspector>
auto inspect(Inspector& f, SnapshotVersion& x) {
  return f(x.incarnation, x.sequence);
}

struct SnapshotMeta {
  std::string run_id;  ///< unique id of the run, 1 to 64 of [a-z A-Z 0-9 _ . -]
  std::string path;    ///< "role/index" within the run
  std::string type;    ///< role type that wrote it
  SnapshotVersion version;
  std::int64_t time_ms = 0;  ///< wall clock, ms since 1970
  std::uint64_t size = 0;    ///< bytes of state
};
template <class Inspector>
auto inspect(Inspector& f, SnapshotMeta& x) {
  return f(x.run_id, x.path, x.type, x.version, x.time_ms, x.size);
}

struct Snapshot {
  SnapshotMeta meta;
  net::Bytes state;
};
template <class Inspector>
auto inspect(Inspector& f, Snapshot& x) {
  return f(x.meta, x.state);
}

class SnapshotStore {
 public:
  /// Keeps so many versions per path.
  static constexpr std::size_t kept_versions = 2;
  static constexpr std::uint64_t max_state_bytes = std::uint64_t{1} << 32U;

  virtual ~SnapshotStore() = default;

  /// Stored durably (temporary name, fsync, rename, fsync of the folder) or an error and nothing changed: ec::invalid_argument (names,
  /// `meta.size` is not the size of `state`), ec::system_error (disk full, …), ec::limit_exceeded. A version that is
  /// not newer than what is there is taken and forgotten: no error.
  virtual expected<void> put(const Snapshot& snapshot) = 0;

  /// The newest readable one of at most version `most` (nothing: any). ec::not_found when there is none;
  /// ec::malformed when there are some and all are damaged, with the files named. Damaged files are skipped with a
  /// warning and renamed to *.damaged.
  virtual expected<Snapshot> get(const std::string& run_id, const std::string& path,
                                 std::optional<SnapshotVersion> most = {}) = 0;

  /// The newest version of each path, of all runs, by header only. Order: run, path.
  virtual std::vector<SnapshotMeta> list() = 0;

  /// Forgets a run. Not an error when there is nothing.
  virtual expected<void> remove_run(const std::string& run_id) = 0;
};

/// In memory: nodes without a data folder and simulations.
std::unique_ptr<SnapshotStore> make_memory_snapshot_store();

/// Files below `folder`/snapshots/RUN_ID/; made if absent. Leftovers of writes that were cut off are removed.
/// ec::system_error when the folder cannot be made or written.
expected<std::unique_ptr<SnapshotStore>> open_snapshot_store(const std::string& folder);

/// The file format, for tests and fuzzing: magic and version, lengths, meta (codec of net/), state, XXH3 of everything
/// before it. ec::malformed for anything else.
std::vector<std::byte> encode_snapshot_file(const Snapshot& snapshot);
expected<Snapshot> decode_snapshot_file(std::span<const std::byte> file);

}  // namespace troupe
