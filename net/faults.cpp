#include "net/faults.hpp"

#include <algorithm>

#include "net/fault_stream.hpp"

namespace troupe::net {

namespace {

constexpr std::uint32_t fault_role = 0x46415544U;

}  // namespace

std::vector<std::shared_ptr<FaultStream>> FaultPeer::open_streams() {
  std::vector<std::shared_ptr<FaultStream>> result;
  const std::lock_guard lock(mutex);
  for (const auto& weak : streams) {
    if (auto stream = weak.lock()) {
      result.push_back(std::move(stream));
    }
  }
  return result;
}

FaultInjector::FaultInjector(std::uint64_t seed, FaultLimits limits)
    : seed_(seed), limits_(limits) {}

FaultInjector::~FaultInjector() = default;

std::shared_ptr<FaultPeer> FaultInjector::obtain(const NodeId& peer) {
  const std::lock_guard lock(mutex_);
  auto& entry = peers_[peer];
  if (!entry) {
    entry = std::make_shared<FaultPeer>();
  }
  return entry;
}

std::shared_ptr<FaultPeer> FaultInjector::lookup(const NodeId& peer) const {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : found->second;
}

void FaultInjector::set(const NodeId& peer, FaultPlan plan) {
  const auto entry = obtain(peer);
  {
    const std::lock_guard lock(entry->mutex);
    entry->plan = plan;
    ++entry->version;
  }
  for (const auto& stream : entry->open_streams()) {
    stream->poke();
  }
}

FaultPlan FaultInjector::plan(const NodeId& peer) const {
  const auto entry = lookup(peer);
  if (!entry) {
    return {};
  }
  const std::lock_guard lock(entry->mutex);
  return entry->plan;
}

void FaultInjector::partition(const NodeId& peer, FaultSide side) {
  FaultPlan changed = plan(peer);
  const auto bits = static_cast<unsigned>(side);
  changed.partition_in = changed.partition_in || (bits & 1U) != 0;
  changed.partition_out = changed.partition_out || (bits & 2U) != 0;
  set(peer, changed);
}

void FaultInjector::heal(const NodeId& peer) {
  FaultPlan changed = plan(peer);
  changed.partition_in = false;
  changed.partition_out = false;
  set(peer, changed);
}

void FaultInjector::clear() {
  std::vector<NodeId> ids;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, entry] : peers_) {
      ids.push_back(id);
    }
  }
  for (const NodeId& id : ids) {
    set(id, {});
  }
}

std::size_t FaultInjector::drop(const NodeId& peer) {
  const auto entry = lookup(peer);
  if (!entry) {
    return 0;
  }
  const auto streams = entry->open_streams();
  for (const auto& stream : streams) {
    stream->drop("fault injection: the connection is dropped");
  }
  return streams.size();
}

void FaultInjector::corrupt_next(const NodeId& peer) { obtain(peer)->corrupt_next = true; }

FaultCounters FaultInjector::counters() const {
  FaultCounters result;
  {
    const std::lock_guard lock(mutex_);
    result.wrapped = streams_;
  }
  result.dropped = dropped_;
  result.corrupted = corrupted_;
  result.refused_dials = refused_;
  return result;
}

std::shared_ptr<Stream> FaultInjector::wrap(std::shared_ptr<Stream> stream, NodeId peer,
                                            Executor& executor) {
  const auto entry = obtain(peer);
  std::uint32_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = streams_++;
  }
  auto wrapped = std::make_shared<FaultStream>(shared_from_this(), entry, std::move(stream),
                                               executor, PhiloxStream{seed_, fault_role, number});
  const std::lock_guard lock(entry->mutex);
  auto& list = entry->streams;
  list.erase(std::remove_if(list.begin(), list.end(), [](const auto& w) { return w.expired(); }),
             list.end());
  list.push_back(wrapped);
  return wrapped;
}

expected<void> FaultInjector::check_dial(const NodeId& peer) {
  const FaultPlan now = plan(peer);
  if (now.partition_in || now.partition_out) {
    ++refused_;
    return fail(ec::timeout, "dial " + short_string(peer) + ": fault injection: partition");
  }
  if (now.refuse_dials) {
    ++refused_;
    return fail(ec::refused, "dial " + short_string(peer) + ": fault injection: refused");
  }
  return {};
}

expected<void> FaultInjector::check_dial(std::string_view address) {
  NodeId peer;
  {
    const std::lock_guard lock(mutex_);
    const auto found = addresses_.find(address);
    if (found == addresses_.end()) {
      return {};
    }
    peer = found->second;
  }
  return check_dial(peer);
}

void FaultInjector::learn(std::string_view address, const NodeId& peer) {
  const std::lock_guard lock(mutex_);
  addresses_.insert_or_assign(std::string(address), peer);
}

// -- transport ------------------------------------------------------------------------------------

void FaultyTransport::dial(std::string address, StreamPurpose purpose, Duration timeout,
                           DialHandler done) {
  Executor& loop = inner_.executor(purpose);
  if (const auto allowed = injector_->check_dial(std::string_view{address}); !allowed) {
    // In a partition nobody answers, so the dialler waits for its whole timeout, as it really
    // would.
    const Duration wait = allowed.error() == ec::timeout ? timeout : Duration{0};
    loop.schedule(wait, [done = std::move(done), why = allowed.error()] { done(fail(why)); });
    return;
  }
  inner_.dial(
      address, purpose, timeout,
      [injector = injector_, address, done = std::move(done), &loop](expected<OpenStream> open) {
        if (open) {
          injector->learn(address, open->peer);
          if (const auto allowed = injector->check_dial(open->peer); !allowed) {
            open->stream->close(allowed.error());
            done(fail(allowed.error()));
            return;
          }
          open->stream = injector->wrap(std::move(open->stream), open->peer, loop);
        }
        done(std::move(open));
      });
}

void FaultyTransport::on_accept(AcceptHandler handler) {
  inner_.on_accept([this, injector = injector_, handler = std::move(handler)](OpenStream open) {
    if (const auto allowed = injector->check_dial(open.peer); !allowed) {
      open.stream->close(allowed.error());
      return;
    }
    open.stream = injector->wrap(std::move(open.stream), open.peer, executor(open.purpose));
    handler(std::move(open));
  });
}

}  // namespace troupe::net
