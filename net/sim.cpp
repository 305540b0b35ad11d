#include "net/sim.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <stdexcept>

#include "net/sim_impl.hpp"

namespace troupe::net {

namespace {

std::uint64_t pair_key(std::uint32_t from, std::uint32_t to) {
  return (std::uint64_t{from} << 32U) | to;
}

std::uint64_t mix_word(std::uint64_t hash, std::uint64_t word) {
  // One round of SplitMix64's finaliser over the chained value.
  std::uint64_t z = (hash ^ word) + 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

std::uint64_t mix_text(std::uint64_t hash, std::string_view text) {
  std::uint64_t fnv = 0xCBF29CE484222325ULL;
  for (const char c : text) {
    fnv = (fnv ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return mix_word(hash, fnv);
}

}  // namespace

// -- executor and transport -----------------------------------------------------------------------

TimePoint SimExecutor::now() const noexcept { return world_.now; }

void SimExecutor::post(std::function<void()> fn) { world_.at(world_.now, node_, std::move(fn)); }

TimerId SimExecutor::schedule(Duration delay, std::function<void()> fn) {
  return world_.at(world_.now + std::max(delay, Duration{0}), node_, std::move(fn));
}

void SimExecutor::cancel(TimerId id) { world_.queue.cancel(id); }

bool SimExecutor::on_thread() const noexcept {
  return world_.current == node_ && !world_.in_actors;
}

// -- implementation -------------------------------------------------------------------------------

SimWorldImpl::SimWorldImpl(std::uint64_t seed_in, SimConfig config_in)
    : seed(seed_in),
      config(std::move(config_in)),
      // Not zero: CAF gives the default time point a meaning of its own.
      start(TimePoint{} + std::chrono::seconds{1}),
      now(start),
      dial_random(seed_in, static_cast<std::uint32_t>(SimRole::dials)),
      hash(seed_in) {
  ref->world = this;
  config.max_segment = std::max<std::size_t>(config.max_segment, 1);
  config.buffer = std::max<std::size_t>(config.buffer, 1);
}

SimWorldImpl::~SimWorldImpl() {
  // Sinks and queued functions own streams and links whose destructors come back to the executors:
  // from here on nothing is queued, and all of them go while every part of the world still stands.
  closing = true;
  ref->world = nullptr;
  std::vector<std::shared_ptr<StreamSink>> sinks;
  for (auto& [id, connection] : connections) {
    for (SimEnd& end : connection->ends) {
      sinks.push_back(std::move(end.sink));
    }
  }
  auto doomed = queue.drop_all();
  doomed.clear();
  sinks.clear();
  for (const auto& node : nodes) {
    const auto handler = std::move(node->accept);
    node->accept = nullptr;
  }
}

std::uint32_t SimWorldImpl::index_of(const NodeId& id) const {
  const auto found = by_id.find(id);
  if (found == by_id.end()) {
    throw std::invalid_argument("SimWorld: no node " + to_string(id));
  }
  return found->second;
}

SimPathState& SimWorldImpl::path_state(std::uint32_t from, std::uint32_t to) {
  return paths[pair_key(from, to)];
}

const SimPath& SimWorldImpl::path(std::uint32_t from, std::uint32_t to) const {
  const auto found = paths.find(pair_key(from, to));
  return found != paths.end() && found->second.own_path ? found->second.path : config.path;
}

bool SimWorldImpl::blocked(std::uint32_t from, std::uint32_t to) const {
  const SimNode& source = *nodes[from];
  const SimNode& target = *nodes[to];
  if (!source.powered || !target.powered) {
    return true;
  }
  if (source.isolated || target.isolated) {
    return from != to;
  }
  const auto found = paths.find(pair_key(from, to));
  return found != paths.end() && found->second.blocked;
}

TimerId SimWorldImpl::at(TimePoint when, std::uint32_t node, std::function<void()> fn) {
  if (closing || (node != no_node && !nodes[node]->alive)) {
    // A dead node runs nothing; the id is still a valid argument for cancel.
    return ~TimerId{0};
  }
  return queue.push(std::max(when, now), node, std::move(fn));
}

std::optional<TimePoint> SimWorldImpl::next_time() {
  std::optional<TimePoint> result = queue.next();
  if (!due.empty() && (!result || due.begin()->first < *result)) {
    result = std::max(due.begin()->first, now);
  }
  return result;
}

bool SimWorldImpl::step() {
  const std::optional<TimePoint> next_event = queue.next();
  const bool actors_first = !due.empty() && (!next_event || due.begin()->first < *next_event);
  if (!next_event && !actors_first) {
    return false;
  }
  const TimePoint when = actors_first ? std::max(due.begin()->first, now) : *next_event;
  same_instant = when == now ? same_instant + 1 : 0;
  now = when;
  ++events;
  if (actors_first) {
    mark_dirty(*systems[due.begin()->second]);
    drain_dirty();
    return true;
  }
  const SimQueue::Entry entry = queue.pop();
  const std::uint32_t node = queue.node_of(entry);
  if (node != no_node && nodes[node]->paused) {
    nodes[node]->deferred.push_back(entry);
    return true;
  }
  const std::function<void()> fn = queue.release(entry);
  before_event(node);
  current = node;
  if (fn) {
    fn();
  }
  current = no_node;
  after_event(node);
  return true;
}

bool SimWorldImpl::run(TimePoint deadline, const std::function<bool()>* predicate) {
  refresh_all();
  same_instant = 0;
  if (predicate != nullptr && (*predicate)()) {
    return true;
  }
  for (;;) {
    const std::optional<TimePoint> next = next_time();
    if (!next || *next > deadline) {
      now = std::max(now, deadline);
      sync_clocks();
      return false;
    }
    step();
    if (predicate != nullptr && (*predicate)()) {
      return true;
    }
    if (same_instant > config.livelock) {
      log("world", "livelock: too many events at one instant, giving up");
      return false;
    }
  }
}

void SimWorldImpl::log(std::string_view who, std::string_view text) {
  char time[40];
  const auto micros = (now - start).count() / 1000;
  std::snprintf(time, sizeof time, "%6" PRId64 ".%06" PRId64 " ",
                static_cast<std::int64_t>(micros / 1'000'000),
                static_cast<std::int64_t>(micros % 1'000'000));
  std::string line = time;
  line.append(who).append(" ").append(text);
  hash = mix_text(hash, line);
  if (log_sink) {
    log_sink(line);
  }
  lines.push_back(std::move(line));
  if (lines.size() > config.log_lines) {
    lines.pop_front();
  }
}

void SimWorldImpl::log(std::uint32_t node, std::string_view text) {
  log(short_string(nodes[node]->id), text);
}

void SimWorldImpl::mix(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  hash = mix_word(mix_word(mix_word(hash, a), b), c);
}

/// The path between two nodes may have opened: what it held moves on. `other` no_node: all peers.
void SimWorldImpl::path_changed(std::uint32_t node, std::uint32_t other) {
  const auto copy = nodes[node]->connections;
  for (const auto& [id, connection] : copy) {
    const std::uint32_t peer =
        connection->ends[0].node == node ? connection->ends[1].node : connection->ends[0].node;
    if (other == no_node || peer == other) {
      unhold(connection);
    }
  }
}

// -- world ----------------------------------------------------------------------------------------

SimWorld::SimWorld(std::uint64_t seed, SimConfig config)
    : impl_(std::make_unique<SimWorldImpl>(seed, std::move(config))) {}

SimWorld::~SimWorld() = default;

SimTransport& SimWorld::make_transport(NodeId id, std::string address) {
  if (impl_->by_id.count(id) != 0) {
    throw std::invalid_argument("SimWorld: node " + to_string(id) + " exists already");
  }
  const auto index = static_cast<std::uint32_t>(impl_->nodes.size());
  impl_->nodes.push_back(std::make_unique<SimNode>(*impl_, index, id, address));
  impl_->by_id[id] = index;
  impl_->by_address[address] = index;
  impl_->log(index, "listens on " + address);
  return impl_->nodes[index]->transport;
}

NodeId SimWorld::node_id(std::uint32_t index) const {
  PhiloxStream random(impl_->seed, static_cast<std::uint32_t>(SimRole::node_id), index);
  const auto word = [&random] {
    const std::uint64_t high = random();
    return (high << 32U) | random();
  };
  const std::uint64_t high = word();
  return NodeId{high, word()};
}

TimePoint SimWorld::now() const noexcept { return impl_->now; }

Duration SimWorld::elapsed() const noexcept { return impl_->now - impl_->start; }

bool SimWorld::step() {
  impl_->drain_dirty();
  return impl_->step();
}

void SimWorld::run_for(Duration duration) { impl_->run(impl_->now + duration, nullptr); }

bool SimWorld::run_until(const std::function<bool()>& predicate, Duration limit) {
  return impl_->run(impl_->now + limit, &predicate);
}

std::uint64_t SimWorld::events() const noexcept { return impl_->events; }

void SimWorld::after(Duration delay, std::function<void()> fn) {
  impl_->at(impl_->now + delay, no_node, std::move(fn));
}

void SimWorld::log(const NodeId& node, std::string_view text) {
  impl_->log(short_string(node), text);
}

std::vector<std::string> SimWorld::log_lines() const {
  return {impl_->lines.begin(), impl_->lines.end()};
}

std::uint64_t SimWorld::log_hash() const noexcept { return impl_->hash; }

void SimWorld::on_log(std::function<void(std::string_view)> sink) {
  impl_->log_sink = std::move(sink);
}

// -- faults ---------------------------------------------------------------------------------------

SimPath SimWorld::path(const NodeId& from, const NodeId& to) const {
  return impl_->path(impl_->index_of(from), impl_->index_of(to));
}

void SimWorld::set_path(const NodeId& from, const NodeId& to, SimPath path) {
  SimPathState& state = impl_->path_state(impl_->index_of(from), impl_->index_of(to));
  state.path = path;
  state.own_path = true;
}

void SimWorld::set_paths(const NodeId& a, const NodeId& b, SimPath path) {
  set_path(a, b, path);
  set_path(b, a, path);
}

void SimWorld::partition_one_way(const NodeId& from, const NodeId& to) {
  const std::uint32_t source = impl_->index_of(from);
  impl_->path_state(source, impl_->index_of(to)).blocked = true;
  impl_->log(source, "partition towards " + short_string(to));
}

void SimWorld::partition(const NodeId& a, const NodeId& b) {
  partition_one_way(a, b);
  partition_one_way(b, a);
}

void SimWorld::heal(const NodeId& a, const NodeId& b) {
  const std::uint32_t first = impl_->index_of(a);
  const std::uint32_t second = impl_->index_of(b);
  impl_->path_state(first, second).blocked = false;
  impl_->path_state(second, first).blocked = false;
  impl_->log(first, "partition healed with " + short_string(b));
  impl_->path_changed(first, second);
}

void SimWorld::isolate(const NodeId& node) {
  const std::uint32_t index = impl_->index_of(node);
  impl_->nodes[index]->isolated = true;
  impl_->log(index, "isolated");
}

void SimWorld::rejoin(const NodeId& node) {
  const std::uint32_t index = impl_->index_of(node);
  impl_->nodes[index]->isolated = false;
  impl_->log(index, "isolation ended");
  impl_->path_changed(index, no_node);
}

std::size_t SimWorld::drop_connections(const NodeId& first, const NodeId& second, SimLoss loss,
                                       std::optional<StreamPurpose> purpose) {
  const std::uint32_t a = impl_->index_of(first);
  const std::uint32_t b = impl_->index_of(second);
  std::size_t count = 0;
  const auto copy = impl_->nodes[a]->connections;
  for (const auto& [id, connection] : copy) {
    const int side = connection->ends[0].node == a ? 0 : 1;
    if (connection->ends[1 - side].node == b && (!purpose || *purpose == connection->purpose)) {
      impl_->lose(connection, side, loss);
      ++count;
    }
  }
  impl_->log(a, "loses " + std::to_string(count) + " connections to " + short_string(second));
  return count;
}

void SimWorld::corrupt_next(const NodeId& from, const NodeId& to) {
  impl_->path_state(impl_->index_of(from), impl_->index_of(to)).corrupt_next = true;
}

void SimWorld::duplicate_next_dial(const NodeId& from, const NodeId& to) {
  impl_->path_state(impl_->index_of(from), impl_->index_of(to)).duplicate_next = true;
}

void SimWorld::crash(const NodeId& node, SimCrash how) { impl_->crash(impl_->index_of(node), how); }

void SimWorld::pause(const NodeId& node) {
  const std::uint32_t index = impl_->index_of(node);
  impl_->nodes[index]->paused = true;
  impl_->log(index, "paused");
}

void SimWorld::resume(const NodeId& node) {
  const std::uint32_t index = impl_->index_of(node);
  SimNode& paused = *impl_->nodes[index];
  paused.paused = false;
  impl_->log(index, "resumed");
  const auto deferred = std::move(paused.deferred);
  paused.deferred.clear();
  for (const SimQueue::Entry& entry : deferred) {
    impl_->queue.again(entry, impl_->now);
  }
  impl_->after_event(index);
}

bool SimWorld::alive(const NodeId& node) const {
  return impl_->nodes[impl_->index_of(node)]->alive;
}

std::size_t SimWorld::connections() const noexcept { return impl_->connections.size(); }

}  // namespace troupe::net
