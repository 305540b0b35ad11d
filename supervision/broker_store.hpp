// Why: the head may die at any moment and must come back as the same cluster: same id, epoch, members and
// paths. A store makes batches of changes durable before anybody is told of them.
// Thread-safety: one thread at a time (the broker's).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/error.hpp"
#include "supervision/broker_core.hpp"

namespace troupe {

class BrokerStore {
 public:
  virtual ~BrokerStore() = default;

  /// Empty state (cluster id zero) when nothing was stored yet.
  virtual expected<BrokerState> load() = 0;

  /// A new term has begun: its number, cluster id, cluster name and node.
  virtual expected<void> begin(const BrokerInfo& broker) = 0;

  /// All of the batch or nothing.
  virtual expected<void> commit(const BrokerBatch& batch) = 0;

  /// The history after `after_seq`, oldest first, at most `limit`; `after_seq` = 0 gives the newest
  /// `limit`.
  virtual expected<std::vector<MemberEvent>> events(std::uint64_t after_seq,
                                                    std::uint32_t limit) = 0;
};

/// Remembers nothing beyond the process: simulations and heads without a data folder.
std::unique_ptr<BrokerStore> make_memory_store();

/// SQLite (WAL, synchronous=FULL) in `folder`/membership.db; the folder is made if absent. Holds an exclusive lock on
/// `folder`/lock for its life: one process per folder. Errors: ec::conflict (another process holds the
/// folder; the text names its pid), ec::malformed (not a database of ours, or of a later version),
/// ec::system_error.
expected<std::unique_ptr<BrokerStore>> open_sqlite_store(const std::string& folder);

}  // namespace troupe
