#include <algorithm>
#include <cstring>

#include "net/sim_impl.hpp"

namespace troupe::net {

namespace {

Duration draw(PhiloxStream& random, Duration most) {
  const auto count = std::max<Duration::rep>(most.count(), 0);
  return Duration{static_cast<Duration::rep>(random.below(static_cast<std::uint64_t>(count) + 1))};
}

/// Mostly anything up to the largest, sometimes a handful of bytes, so that headers get split.
std::size_t draw_segment(PhiloxStream& random, std::size_t largest) {
  const std::size_t limit = random.below(4) == 0 ? std::min<std::size_t>(largest, 40) : largest;
  return static_cast<std::size_t>(random.below(limit)) + 1;
}

std::string name(const SimConnection& connection, int side) {
  return "#" + std::to_string(connection.id) + (side == 0 ? "a" : "b");
}

}  // namespace

SimConnection::SimConnection(std::shared_ptr<SimWorldRef> ref, std::uint32_t id_in,
                             std::uint64_t seed)
    : world_ref(std::move(ref)),
      id(id_in),
      directions{SimDirection{
                     PhiloxStream{seed, static_cast<std::uint32_t>(SimRole::segments), id_in * 2}},
                 SimDirection{PhiloxStream{seed, static_cast<std::uint32_t>(SimRole::segments),
                                           id_in * 2 + 1}}} {}

// -- the handle -----------------------------------------------------------------------------------

SimStream::~SimStream() {
  if (connection_->world() != nullptr && !connection_->ends[side_].started) {
    close(error{ec::closed, "the stream was dropped unused"});
  }
}

void SimStream::start(std::shared_ptr<StreamSink> sink) {
  SimEnd& end = connection_->ends[side_];
  end.sink = std::move(sink);
  if (connection_->world() == nullptr || end.started) {
    return;
  }
  end.started = true;
  if (end.ended) {
    connection_->world()->schedule_notify(connection_, side_);
  } else {
    connection_->world()->schedule_delivery(connection_, 1 - side_);
  }
}

std::size_t SimStream::write(std::span<const ConstBuffer> buffers) {
  std::size_t total = 0;
  for (const ConstBuffer& buffer : buffers) {
    total += buffer.size();
  }
  SimEnd& end = connection_->ends[side_];
  if (connection_->world() == nullptr || end.ended) {
    return total;
  }
  SimWorldImpl& world = *connection_->world();
  SimDirection& direction = connection_->directions[side_];
  const std::size_t room = world.config.buffer - direction.unacknowledged;
  const std::size_t taken = std::min(total, room);
  direction.unacknowledged += taken;
  direction.want_writable = taken < total;

  std::size_t left = taken;
  std::size_t index = 0;
  std::size_t offset = 0;
  while (left > 0) {
    SimSegment segment;
    const std::size_t size =
        std::min(left, draw_segment(direction.random, world.config.max_segment));
    segment.bytes.reserve(size);
    while (segment.bytes.size() < size) {
      const ConstBuffer rest = buffers[index].subspan(offset);
      const std::size_t part = std::min(rest.size(), size - segment.bytes.size());
      segment.bytes.insert(segment.bytes.end(), rest.begin(),
                           rest.begin() + static_cast<std::ptrdiff_t>(part));
      offset += part;
      if (offset == buffers[index].size()) {
        ++index;
        offset = 0;
      }
    }
    const std::uint32_t to = connection_->ends[1 - side_].node;
    const std::uint64_t rate = world.path(end.node, to).bytes_per_second;
    TimePoint departs = std::max(world.now, direction.line_free);
    if (rate > 0) {
      departs += Duration{static_cast<Duration::rep>(size * 1'000'000'000ULL / rate)};
    }
    direction.line_free = departs;
    direction.last_arrival =
        std::max(direction.last_arrival, departs + world.wire_time(direction, end.node, to));
    segment.arrives = direction.last_arrival;
    direction.queue.push_back(std::move(segment));
    left -= size;
  }
  world.schedule_delivery(connection_, side_);
  return taken;
}

void SimStream::close(error reason) {
  SimEnd& end = connection_->ends[side_];
  if (connection_->world() == nullptr || end.ended) {
    return;
  }
  SimWorldImpl& world = *connection_->world();
  SimDirection& direction = connection_->directions[side_];
  SimSegment fin;
  fin.fin = true;
  direction.last_arrival =
      std::max(direction.last_arrival,
               world.now + world.wire_time(direction, end.node, connection_->ends[1 - side_].node));
  fin.arrives = direction.last_arrival;
  direction.queue.push_back(std::move(fin));
  world.schedule_delivery(connection_, side_);
  world.finish(connection_, side_, std::move(reason));
}

std::string SimStream::peer_address() const {
  if (connection_->world() == nullptr) {
    return "gone";
  }
  return connection_->world()->nodes[connection_->ends[1 - side_].node]->address;
}

// -- bytes on their way ---------------------------------------------------------------------------

SimConnectionPtr SimWorldImpl::connect(std::uint32_t dialer, std::uint32_t acceptor,
                                       StreamPurpose purpose) {
  auto connection = std::make_shared<SimConnection>(ref, next_connection++, seed);
  connection->purpose = purpose;
  connection->ends[0].node = dialer;
  connection->ends[1].node = acceptor;
  connections[connection->id] = connection;
  nodes[dialer]->connections[connection->id] = connection;
  nodes[acceptor]->connections[connection->id] = connection;
  return connection;
}

Duration SimWorldImpl::wire_time(SimDirection& direction, std::uint32_t from, std::uint32_t to) {
  const SimPath& way = path(from, to);
  return way.jitter.count() > 0 ? way.delay + draw(direction.random, way.jitter) : way.delay;
}

void SimWorldImpl::schedule_delivery(const SimConnectionPtr& connection, int from) {
  SimDirection& direction = connection->directions[from];
  const SimEnd& receiver = connection->ends[1 - from];
  if (direction.deliver_scheduled || direction.deliver_held || direction.queue.empty()) {
    return;
  }
  if (!receiver.started && !receiver.ended) {
    return;
  }
  direction.deliver_scheduled = true;
  // What is sent to a side that has ended is the network's business, no longer that node's.
  const std::uint32_t node = receiver.ended ? no_node : receiver.node;
  at(direction.queue.front().arrives, node,
     [this, connection, from] { deliver(connection, from); });
}

void SimWorldImpl::deliver(const SimConnectionPtr& connection, int from) {
  SimDirection& direction = connection->directions[from];
  const SimEnd& receiver = connection->ends[1 - from];
  direction.deliver_scheduled = false;
  if (connection->lost) {
    direction.queue.clear();
    return;
  }
  if (direction.queue.empty()) {
    return;
  }
  if (blocked(connection->ends[from].node, receiver.node)) {
    direction.deliver_held = true;
    hold(connection, from);
    return;
  }
  if (receiver.ended) {
    const bool only_fin = direction.queue.front().fin;
    direction.queue.clear();
    if (!only_fin) {
      send_reset(connection, from);
    }
    forget_if_done(connection);
    return;
  }
  SimSegment segment = std::move(direction.queue.front());
  direction.queue.pop_front();
  deliver_segment(connection, from, std::move(segment));
  schedule_delivery(connection, from);
}

void SimWorldImpl::deliver_segment(const SimConnectionPtr& connection, int from,
                                   SimSegment segment) {
  const int side = 1 - from;
  SimEnd& receiver = connection->ends[side];
  mix(static_cast<std::uint64_t>((now - start).count()),
      connection->id * 2U + (side == 0 ? 0U : 1U), segment.bytes.size());
  if (segment.fin) {
    finish(connection, side, error{ec::closed, "the peer closed the connection"});
    return;
  }
  const auto found =
      paths.find((std::uint64_t{connection->ends[from].node} << 32U) | receiver.node);
  const double rate = path(connection->ends[from].node, receiver.node).corrupt;
  const bool now_corrupt = found != paths.end() && found->second.corrupt_next;
  SimDirection& direction = connection->directions[from];
  if (now_corrupt || (rate > 0.0 && direction.random.uniform() < rate)) {
    if (now_corrupt) {
      found->second.corrupt_next = false;
    }
    const std::uint64_t bit = direction.random.below(segment.bytes.size() * 8);
    segment.bytes[static_cast<std::size_t>(bit / 8)] ^= static_cast<std::byte>(1U << (bit % 8));
    log(receiver.node, name(*connection, side) + " receives a flipped bit");
  }
  acknowledge(connection, from, segment.bytes.size());
  std::size_t offset = 0;
  while (offset < segment.bytes.size() && !receiver.ended && receiver.sink) {
    // Held here: a callback may hand the stream to another sink.
    const std::shared_ptr<StreamSink> sink = receiver.sink;
    const MutableBuffer window = sink->read_window();
    if (window.empty()) {
      // Against the contract; what cannot be delivered would hang, so the stream ends.
      finish(connection, side, error{ec::system_error, "the sink gave an empty read window"});
      return;
    }
    const std::size_t count = std::min(window.size(), segment.bytes.size() - offset);
    std::memcpy(window.data(), segment.bytes.data() + offset, count);
    offset += count;
    sink->on_bytes(count);
  }
}

void SimWorldImpl::acknowledge(const SimConnectionPtr& connection, int from, std::size_t count) {
  SimDirection& direction = connection->directions[from];
  direction.acknowledging += count;
  if (direction.ack_scheduled || direction.ack_held) {
    return;
  }
  direction.ack_scheduled = true;
  const std::uint32_t sender = connection->ends[from].node;
  const std::uint32_t receiver = connection->ends[1 - from].node;
  at(now + path(receiver, sender).delay, sender,
     [this, connection, from] { acknowledged(connection, from); });
}

void SimWorldImpl::acknowledged(const SimConnectionPtr& connection, int from) {
  SimDirection& direction = connection->directions[from];
  SimEnd& sender = connection->ends[from];
  direction.ack_scheduled = false;
  if (sender.ended || connection->lost) {
    return;
  }
  if (blocked(connection->ends[1 - from].node, sender.node)) {
    direction.ack_held = true;
    hold(connection, from);
    return;
  }
  direction.unacknowledged -= direction.acknowledging;
  direction.acknowledging = 0;
  if (!direction.deliver_held) {
    direction.held_since.reset();
  }
  if (direction.want_writable && direction.unacknowledged <= config.buffer / 2) {
    direction.want_writable = false;
    if (sender.sink) {
      const std::shared_ptr<StreamSink> sink = sender.sink;
      sink->on_writable();
    }
  }
}

// -- partitions -----------------------------------------------------------------------------------

void SimWorldImpl::hold(const SimConnectionPtr& connection, int from) {
  SimDirection& direction = connection->directions[from];
  if (direction.held_since || connection->ends[from].ended) {
    return;
  }
  direction.held_since = now;
  at(now + config.stream_death, no_node, [this, connection, from, since = now] {
    const SimDirection& held = connection->directions[from];
    if (held.held_since == since && !connection->ends[from].ended) {
      vanish(connection, from);
      finish(connection, from,
             error{ec::timeout, "connection timed out: nothing was acknowledged"});
    }
  });
}

void SimWorldImpl::unhold(const SimConnectionPtr& connection) {
  for (int from = 0; from < 2; ++from) {
    SimDirection& direction = connection->directions[from];
    if (direction.reset_held) {
      direction.reset_held = false;
      send_reset(connection, from);
    }
    if (!direction.deliver_held && !direction.ack_held) {
      continue;
    }
    direction.held_since.reset();
    const TimePoint when =
        now + draw(direction.random, config.retransmit) +
        wire_time(direction, connection->ends[from].node, connection->ends[1 - from].node);
    if (direction.deliver_held) {
      direction.deliver_held = false;
      for (SimSegment& segment : direction.queue) {
        segment.arrives = std::max(segment.arrives, when);
      }
      direction.last_arrival = std::max(direction.last_arrival, when);
      schedule_delivery(connection, from);
    }
    if (direction.ack_held) {
      direction.ack_held = false;
      direction.ack_scheduled = true;
      at(when, connection->ends[from].node,
         [this, connection, from] { acknowledged(connection, from); });
    }
  }
}

// -- the end of a connection ----------------------------------------------------------------------

/// `to` hears that the other side knows nothing of the connection.
void SimWorldImpl::send_reset(const SimConnectionPtr& connection, int to) {
  const SimEnd& end = connection->ends[to];
  if (end.ended) {
    return;
  }
  const std::uint32_t sender = connection->ends[1 - to].node;
  at(now + path(sender, end.node).delay, end.node, [this, connection, to, sender] {
    if (blocked(sender, connection->ends[to].node)) {
      // The bytes that provoked it stay unacknowledged; they provoke another when the path opens.
      connection->directions[to].reset_held = true;
      hold(connection, to);
      return;
    }
    finish(connection, to, error{ec::node_unreachable, "connection reset by peer"});
  });
}

void SimWorldImpl::finish(const SimConnectionPtr& connection, int side, error reason) {
  SimEnd& end = connection->ends[side];
  if (end.ended) {
    return;
  }
  end.ended = true;
  log(end.node, name(*connection, side) + " ends: " + std::string(to_string(reason.code())) + ": " +
                    reason.text());
  end.reason = std::move(reason);
  connection->directions[side].want_writable = false;
  if (end.started) {
    schedule_notify(connection, side);
  } else {
    // Bytes that waited for `start` now reach a closed end.
    schedule_delivery(connection, 1 - side);
    forget_if_done(connection);
  }
}

void SimWorldImpl::schedule_notify(const SimConnectionPtr& connection, int side) {
  SimEnd& end = connection->ends[side];
  if (end.notify_scheduled) {
    return;
  }
  end.notify_scheduled = true;
  at(now, end.node, [this, connection, side] {
    SimEnd& ending = connection->ends[side];
    const std::shared_ptr<StreamSink> sink = std::move(ending.sink);
    ending.sink = nullptr;
    if (sink) {
      sink->on_closed(ending.reason);
    }
    forget_if_done(connection);
  });
}

/// From now on this side is dead without the other's knowledge.
void SimWorldImpl::vanish(const SimConnectionPtr& connection, int side) {
  connection->directions[side].queue.clear();
  const int other = 1 - side;
  if (!connection->ends[other].ended) {
    at(now + config.half_open_limit, no_node,
       [this, connection, other] { expire_half_open(connection, other); });
  }
}

void SimWorldImpl::expire_half_open(const SimConnectionPtr& connection, int side) {
  vanish(connection, side);
  finish(connection, side, error{ec::timeout, "connection timed out: the peer is gone"});
}

void SimWorldImpl::forget_if_done(const SimConnectionPtr& connection) {
  if (!connection->ends[0].ended || !connection->ends[1].ended) {
    return;
  }
  connections.erase(connection->id);
  for (const SimEnd& end : connection->ends) {
    nodes[end.node]->connections.erase(connection->id);
  }
  connection->directions[0].queue.clear();
  connection->directions[1].queue.clear();
}

void SimWorldImpl::lose(const SimConnectionPtr& connection, int first, SimLoss loss) {
  PhiloxStream random(seed, static_cast<std::uint32_t>(SimRole::losses), next_loss++);
  const error reason{ec::node_unreachable, "connection reset"};
  const auto notice = [&](int side, Duration delay) {
    at(now + delay, no_node,
       [this, connection, side, reason] { finish(connection, side, reason); });
  };
  switch (loss) {
    case SimLoss::both:
      connection->lost = true;
      notice(first, draw(random, config.notice));
      notice(1 - first, draw(random, config.notice));
      break;
    case SimLoss::reset:
      connection->lost = true;
      notice(first, Duration{0});
      notice(1 - first, Duration{0});
      break;
    case SimLoss::first_only:
    case SimLoss::second_only: {
      const int side = loss == SimLoss::first_only ? first : 1 - first;
      vanish(connection, side);
      finish(connection, side, reason);
      break;
    }
  }
}

void SimWorldImpl::crash(std::uint32_t index, SimCrash how) {
  SimNode& node = *nodes[index];
  if (!node.alive) {
    return;
  }
  log(index, how == SimCrash::process ? "crashes" : "loses power");
  PhiloxStream random(seed, static_cast<std::uint32_t>(SimRole::losses), next_loss++);
  node.alive = false;
  node.accept = nullptr;
  const auto doomed = queue.drop_node(index);
  for (const SimQueue::Entry& entry : node.deferred) {
    queue.release(entry);
  }
  node.deferred.clear();
  abandon_systems(index);
  if (how == SimCrash::host) {
    node.powered = false;
  }
  std::vector<std::shared_ptr<StreamSink>> sinks;
  const auto copy = node.connections;
  for (const auto& [id, connection] : copy) {
    const bool abrupt = random.below(2) == 0;
    for (int side = 0; side < 2; ++side) {
      if (connection->ends[side].node == index) {
        sinks.push_back(std::move(connection->ends[side].sink));
        connection->ends[side].sink = nullptr;
        crash_side(connection, side, how, abrupt);
      }
    }
    forget_if_done(connection);
  }
}

/// One end of a connection loses its process. `abrupt`: what was in flight is lost with it.
void SimWorldImpl::crash_side(const SimConnectionPtr& connection, int side, SimCrash how,
                              bool abrupt) {
  SimEnd& end = connection->ends[side];
  if (end.ended) {
    return;
  }
  end.ended = true;
  // A delivery to this node was among the events that were dropped.
  connection->directions[1 - side].deliver_scheduled = false;
  if (how == SimCrash::host) {
    vanish(connection, side);
  } else if (abrupt) {
    connection->directions[side].queue.clear();
    send_reset(connection, 1 - side);
  } else {
    SimSegment fin;
    fin.fin = true;
    SimDirection& outgoing = connection->directions[side];
    outgoing.last_arrival =
        std::max(outgoing.last_arrival,
                 now + wire_time(outgoing, end.node, connection->ends[1 - side].node));
    fin.arrives = outgoing.last_arrival;
    outgoing.queue.push_back(std::move(fin));
    schedule_delivery(connection, side);
  }
  schedule_delivery(connection, 1 - side);
}

}  // namespace troupe::net
