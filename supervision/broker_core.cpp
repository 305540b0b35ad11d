#include "supervision/broker_core.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "supervision/broker_core_impl.hpp"

namespace troupe {

namespace broker {

std::string label(const Member& member) {
  return member.name + " (" + short_string(member.id) + ")";
}

net::TimePoint later(net::TimePoint from, Milliseconds by) {
  // In milliseconds, where a configured time of any size fits.
  const auto room = std::chrono::duration_cast<Milliseconds>(net::TimePoint::max() - from);
  return by < room ? from + by : net::TimePoint::max();
}

void ChangeLog::add(const Member& member) {
  const auto [it, added] = last_.try_emplace(member.incarnation, member.epoch);
  if (!added) {
    by_epoch_.erase(it->second);
    it->second = member.epoch;
  }
  by_epoch_.emplace(member.epoch, member);
}

void ChangeLog::trim(std::size_t limit, std::uint64_t keep_after) {
  while (by_epoch_.size() > limit && by_epoch_.begin()->first <= keep_after) {
    const auto oldest = by_epoch_.begin();
    floor_ = oldest->first;
    last_.erase(oldest->second.incarnation);
    by_epoch_.erase(oldest);
  }
}

std::vector<Member> ChangeLog::since(std::uint64_t epoch) const {
  std::vector<Member> result;
  for (auto it = by_epoch_.upper_bound(epoch); it != by_epoch_.end(); ++it) {
    result.push_back(it->second);
  }
  return result;
}

void Tombstones::load(std::vector<Tombstone> tombstones) {
  for (auto& tombstone : tombstones) {
    insert(std::move(tombstone));
  }
}

void Tombstones::add(Tombstone tombstone) {
  added_.push_back(tombstone);
  insert(std::move(tombstone));
}

void Tombstones::insert(Tombstone tombstone) {
  const auto incarnation = tombstone.incarnation;
  if (tombstone.replaced) {
    replaced_[tombstone.node] = incarnation;
  }
  if (by_incarnation_.insert_or_assign(incarnation, std::move(tombstone)).second) {
    order_.push_back(incarnation);
  }
  // A forgotten incarnation stays out all the same: nobody may come back as one that is not known.
  while (order_.size() > limit_) {
    const auto oldest = by_incarnation_.find(order_.front());
    order_.pop_front();
    const auto replaced = replaced_.find(oldest->second.node);
    if (replaced != replaced_.end() && replaced->second == oldest->first) {
      replaced_.erase(replaced);
    }
    forgotten_.push_back(std::move(oldest->second));
    by_incarnation_.erase(oldest);
  }
}

const Tombstone* Tombstones::find(const NodeId& node, std::uint64_t incarnation) const {
  const auto it = by_incarnation_.find(incarnation);
  return it != by_incarnation_.end() && it->second.node == node ? &it->second : nullptr;
}

const Tombstone* Tombstones::replaced(const NodeId& node) const {
  const auto it = replaced_.find(node);
  return it == replaced_.end() ? nullptr : find(node, it->second);
}

std::vector<Tombstone> Tombstones::all() const {
  std::vector<Tombstone> result;
  result.reserve(order_.size());
  for (const auto incarnation : order_) {
    result.push_back(by_incarnation_.at(incarnation));
  }
  return result;
}

namespace {

/// What no two records may share must be above all of them, whatever a damaged state says.
std::uint64_t greatest_epoch(const BrokerState& state) {
  auto result = state.epoch;
  for (const auto& member : state.members) {
    result = std::max(result, member.epoch);
  }
  return result;
}

std::uint64_t first_free_incarnation(const BrokerState& state) {
  auto result = std::max<std::uint64_t>(state.next_incarnation, 1);
  for (const auto& member : state.members) {
    result = std::max(result, member.incarnation + 1);
  }
  for (const auto& tombstone : state.tombstones) {
    result = std::max(result, tombstone.incarnation + 1);
  }
  return result;
}

}  // namespace

}  // namespace broker

bool BrokerBatch::empty() const {
  return delta.base == delta.epoch && tombstones.empty() && forgotten.empty() && events.empty() &&
         directory.empty() && removed_paths.empty() && fenced.empty() && drains.empty();
}

BrokerCore::Impl::Impl(BrokerCoreConfig c, BrokerState state, Moment now)
    : config(std::move(c)),
      view(ViewSnapshot{{}, broker::greatest_epoch(state), state.members}),
      next_incarnation(broker::first_free_incarnation(state)),
      next_event(std::max<std::uint64_t>(state.next_event, 1)),
      log(view.epoch()),
      tombstones(config.max_tombstones),
      directory(config.max_paths, config.times.lease),
      taken_epoch(view.epoch()) {
  info.cluster = config.cluster.empty() ? state.cluster : config.cluster;
  info.cluster_id = state.cluster_id ? state.cluster_id : config.new_cluster_id;
  info.term = state.term + 1;
  info.broker = config.self;
  info.address = config.address;
  view.set_broker(info);
  tombstones.load(std::move(state.tombstones));
  adopt(state, now);
  begin_term(state, now);
  settle(now);
}

void BrokerCore::Impl::adopt(const BrokerState& state, Moment now) {
  const auto& times = config.times;
  const auto grace_end = broker::later(now.steady, times.head_grace);
  for (const auto& [id, member] : view.live()) {
    auto& record = live[id];
    record.confirmed = member.state != MemberState::joining;
    if (!record.confirmed) {
      record.joining_until =
          broker::later(now.steady, std::max(times.head_grace, times.lease + times.down_after));
    }
    if (id != config.self) {
      awaited.insert(id);
    }
    if (member.state == MemberState::suspect) {
      // Who said so is forgotten; the suspicion stays, but its time runs only after the grace.
      suspects.insert(id);
      record.suspected = grace_end;
      record.said[config.self] = {Observed::suspect, member.reason, grace_end};
    }
    by_address.try_emplace(member.address, id);
    schedule(id, record, now.steady);
  }
  if (!awaited.empty()) {
    grace_until = grace_end;
  }
  const bool other_process = state.broker && state.broker != config.self;
  directory.load(state.directory, state.directory_epoch, view,
                 other_process ? state.broker : NodeId{}, now.steady);
}

void BrokerCore::Impl::begin_term(const BrokerState& state, Moment now) {
  MemberEvent event;
  event.seq = next_event++;
  event.time_ms = now.wall_ms;
  event.epoch = view.epoch();
  event.node = config.self;
  event.address = config.address;
  event.what = "cluster";
  event.reason = (state.cluster_id ? "the broker was started anew, term " : "created, term ") +
                 std::to_string(info.term);
  events.push_back(std::move(event));

  // The head flag too: the last broker may have ended before its own node had joined, and then it is
  // not its id that is in the view but that of the one before. A broker actor that is started again in
  // the same process is the one case in which its node lives on.
  std::vector<NodeId> gone;
  std::vector<NodeId> contradicted;
  for (const auto& [id, member] : view.live()) {
    if (id != config.self && (id == state.broker || member.head)) {
      gone.push_back(id);
    } else if (tombstones.find(id, member.incarnation) != nullptr ||
               by_address.at(member.address) != id) {
      contradicted.push_back(id);
    }
  }
  for (const auto& id : gone) {
    down(id, "its process has ended: the broker was started anew elsewhere", true, false, now);
  }
  // A store of ours never leaves these; one that was edited by hand must not break the rules.
  for (const auto& id : contradicted) {
    down(id, "the stored state contradicts itself about this member", false, false, now);
  }
}

/// The one way in which a member's record changes.
void BrokerCore::Impl::record(Member member) {
  member.epoch = view.epoch() + 1;
  view.put(member);
  view.set_epoch(member.epoch);
  log.add(member);
}

void BrokerCore::Impl::note(const Member& member, std::string_view what, std::string reason,
                            Moment now) {
  MemberEvent event;
  event.seq = next_event++;
  event.time_ms = now.wall_ms;
  event.epoch = view.epoch();
  event.node = member.id;
  event.incarnation = member.incarnation;
  event.name = member.name;
  event.address = member.address;
  event.what = what;
  event.reason = std::move(reason);
  events.push_back(std::move(event));
}

bool BrokerCore::Impl::has_changes() const {
  return taken_epoch != view.epoch() || !events.empty() || !fenced.empty() || !drains.empty() ||
         tombstones.changed() || directory.changed();
}

BrokerBatch BrokerCore::Impl::take_batch() {
  BrokerBatch batch;
  batch.epoch = view.epoch();
  batch.next_incarnation = next_incarnation;
  batch.next_event = next_event;
  batch.directory_epoch = directory.epoch();
  batch.delta = {info.term, taken_epoch, view.epoch(), log.since(taken_epoch)};
  batch.tombstones = tombstones.take_added();
  batch.forgotten = tombstones.take_forgotten();
  batch.events = std::exchange(events, {});
  batch.removed_paths = directory.take_removed();
  batch.directory = directory.take_changed();
  batch.fenced = std::exchange(fenced, {});
  batch.drains = std::exchange(drains, {});
  taken_epoch = view.epoch();
  log.trim(config.max_delta_log, taken_epoch);
  return batch;
}

BrokerState BrokerCore::Impl::state() const {
  BrokerState result;
  result.cluster = info.cluster;
  result.cluster_id = info.cluster_id;
  result.term = info.term;
  result.broker = info.broker;
  result.epoch = view.epoch();
  result.next_incarnation = next_incarnation;
  result.next_event = next_event;
  result.directory_epoch = directory.epoch();
  result.members = view.snapshot().members;
  result.tombstones = tombstones.all();
  result.directory = directory.all();
  return result;
}

BrokerCore::BrokerCore(BrokerCoreConfig config, BrokerState state, Moment now)
    : impl_(std::make_unique<Impl>(std::move(config), std::move(state), now)) {}

BrokerCore::~BrokerCore() = default;

const View& BrokerCore::view() const noexcept { return impl_->view; }
const BrokerInfo& BrokerCore::info() const noexcept { return impl_->info; }
std::size_t BrokerCore::tombstone_count() const noexcept { return impl_->tombstones.size(); }
bool BrokerCore::outdated() const noexcept { return impl_->outdated; }

JoinReply BrokerCore::join(const JoinRequest& request, Moment now) {
  auto reply = impl_->join(request, now);
  impl_->settle(now);
  if (reply.code == ec::none) {
    // After everything the join has caused, so that the joiner starts with one consistent view.
    reply.snapshot = impl_->view.snapshot();
    reply.times = impl_->config.times;
  }
  return reply;
}

SyncReply BrokerCore::sync(const SyncRequest& request, Moment now) {
  return impl_->sync(request, now);
}

void BrokerCore::observe(const Observation& observation, Moment now) {
  impl_->observe(observation, now);
  impl_->settle(now);
}

CommandReply BrokerCore::drain(const DrainRequest& request, Moment now) {
  return impl_->drain(request, now);
}

CommandReply BrokerCore::leave(const LeaveRequest& request, Moment now) {
  auto reply = impl_->leave(request, now);
  impl_->settle(now);
  return reply;
}

namespace {

constexpr const char* outdated_text =
    "a later broker of this cluster has been seen; this one is ending";

}  // namespace

ClaimReply BrokerCore::claim(const ClaimRequest& request, Moment now) {
  if (impl_->outdated) {
    return {ec::closed, outdated_text, 0, {}};
  }
  return impl_->directory.claim(request, impl_->view.find(request.node, request.incarnation),
                                now.steady);
}

CommandReply BrokerCore::release(const ReleaseRequest& request, Moment /*now*/) {
  if (impl_->outdated) {
    return {ec::closed, outdated_text, request.node};
  }
  return impl_->directory.release(request);
}

DirectoryUpdate BrokerCore::resolve(const ResolveRequest& request, Moment /*now*/) {
  const bool asker_is_live = impl_->view.find(request.node) != nullptr;
  return {impl_->info.term, {impl_->directory.resolve(request, asker_is_live)}};
}

const std::set<NodeId>& BrokerCore::interested(const std::string& path) const {
  return impl_->directory.interested(path);
}

std::optional<DirectoryEntry> BrokerCore::entry(const std::string& path) const {
  return impl_->directory.entry(path);
}

void BrokerCore::tick(Moment now) { impl_->tick(now); }
std::optional<net::TimePoint> BrokerCore::next_deadline() const { return impl_->next_deadline(); }
BrokerBatch BrokerCore::take_batch() { return impl_->take_batch(); }
bool BrokerCore::has_changes() const { return impl_->has_changes(); }
BrokerState BrokerCore::state() const { return impl_->state(); }

}  // namespace troupe
