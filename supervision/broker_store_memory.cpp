#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "supervision/broker_store.hpp"
#include "supervision/broker_store_limits.hpp"

namespace troupe {

namespace {

class MemoryStore final : public BrokerStore {
 public:
  expected<BrokerState> load() override {
    auto result = head_;
    result.members = view_.snapshot().members;
    result.tombstones.assign(tombstones_.begin(), tombstones_.end());
    for (const auto& [path, entry] : directory_) {
      result.directory.push_back(entry);
    }
    return result;
  }

  expected<void> begin(const BrokerInfo& broker) override {
    head_.cluster = broker.cluster;
    head_.cluster_id = broker.cluster_id;
    head_.term = broker.term;
    head_.broker = broker.broker;
    return {};
  }

  expected<void> commit(const BrokerBatch& batch) override {
    head_.epoch = batch.epoch;
    head_.next_incarnation = batch.next_incarnation;
    head_.next_event = batch.next_event;
    head_.directory_epoch = batch.directory_epoch;
    for (const auto& member : batch.delta.changed) {
      view_.put(member);
    }
    for (const auto& path : batch.removed_paths) {
      directory_.erase(path);
    }
    for (const auto& entry : batch.directory) {
      directory_[entry.path] = entry;
    }
    tombstones_.insert(tombstones_.end(), batch.tombstones.begin(), batch.tombstones.end());
    forget(batch.forgotten);
    events_.insert(events_.end(), batch.events.begin(), batch.events.end());
    while (events_.size() > kept_events) {
      events_.pop_front();
    }
    return {};
  }

  expected<std::vector<MemberEvent>> events(std::uint64_t after_seq, std::uint32_t limit) override {
    auto first = events_.begin();
    if (after_seq == 0) {
      first =
          events_.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(limit, events_.size()));
    } else {
      first = std::upper_bound(
          events_.begin(), events_.end(), after_seq,
          [](std::uint64_t seq, const MemberEvent& event) { return seq < event.seq; });
    }
    const auto left = static_cast<std::size_t>(events_.end() - first);
    return std::vector<MemberEvent>(
        first, first + static_cast<std::ptrdiff_t>(std::min<std::size_t>(limit, left)));
  }

 private:
  void forget(const std::vector<Tombstone>& forgotten) {
    if (forgotten.empty()) {
      return;
    }
    std::set<std::uint64_t> incarnations;
    for (const auto& tombstone : forgotten) {
      incarnations.insert(tombstone.incarnation);
    }
    // The forgotten ones are the oldest, so they stand in front.
    while (!tombstones_.empty() && incarnations.count(tombstones_.front().incarnation) != 0) {
      tombstones_.pop_front();
    }
  }

  BrokerState head_;  // without its lists
  View view_;
  std::deque<Tombstone> tombstones_;
  std::map<std::string, DirectoryEntry> directory_;
  std::deque<MemberEvent> events_;
};

}  // namespace

std::unique_ptr<BrokerStore> make_memory_store() { return std::make_unique<MemoryStore>(); }

}  // namespace troupe
