#include <algorithm>

#include "net/sim_impl.hpp"

namespace troupe::net {

namespace {

constexpr Duration first_retry = std::chrono::milliseconds{200};

std::string_view name(StreamPurpose purpose) {
  return purpose == StreamPurpose::link ? "link" : "heartbeat";
}

}  // namespace

Executor& SimTransport::executor(StreamPurpose) { return world_.nodes[node_]->executor; }

void SimTransport::on_accept(AcceptHandler handler) {
  world_.nodes[node_]->accept = std::move(handler);
}

const NodeId& SimTransport::id() const noexcept { return world_.nodes[node_]->id; }

const std::string& SimTransport::address() const noexcept { return world_.nodes[node_]->address; }

void SimTransport::dial(std::string address, StreamPurpose purpose, Duration timeout,
                        DialHandler done) {
  if (!world_.nodes[node_]->alive) {
    return;
  }
  auto dial = std::make_shared<SimDial>();
  dial->from = node_;
  dial->address = std::move(address);
  dial->purpose = purpose;
  dial->done = std::move(done);
  dial->retry = first_retry;
  world_.log(node_, "dials " + dial->address + " (" + std::string(name(purpose)) + ")");
  dial->timer = world_.at(world_.now + timeout, node_, [&world = world_, dial] {
    world.dial_done(dial, fail(ec::timeout, "dial " + dial->address +
                                                ": no answer in time; check that the node is "
                                                "reachable"));
  });
  const auto target = world_.by_address.find(dial->address);
  const Duration delay = target == world_.by_address.end()
                             ? world_.config.path.delay
                             : world_.path(node_, target->second).delay;
  world_.at(world_.now + delay, no_node, [&world = world_, dial] { world.dial_arrives(dial); });
}

/// The first packet reaches the target, or is lost and tried again.
void SimWorldImpl::dial_arrives(const SimDialPtr& dial) {
  if (dial->finished || !nodes[dial->from]->alive) {
    return;
  }
  const auto found = by_address.find(dial->address);
  if (found == by_address.end()) {
    dial_refused(dial, dial->from, "no such address");
    return;
  }
  const std::uint32_t to = found->second;
  if (blocked(dial->from, to)) {
    at(now + dial->retry, no_node, [this, dial] { dial_arrives(dial); });
    dial->retry = std::min<Duration>(dial->retry * 2, std::chrono::seconds{5});
    return;
  }
  if (!nodes[to]->alive || !nodes[to]->accept || path(dial->from, to).refuse_dials) {
    dial_refused(dial, to, "connection refused");
    return;
  }
  dial_accepted(dial, to);
}

void SimWorldImpl::dial_refused(const SimDialPtr& dial, std::uint32_t to, std::string text) {
  if (blocked(to, dial->from)) {
    return;  // The refusal is lost; the dialler runs into its timeout.
  }
  at(now + path(to, dial->from).delay, dial->from, [this, dial, text = std::move(text)] {
    dial_done(dial, fail(ec::refused, "dial " + dial->address + ": " + text));
  });
}

void SimWorldImpl::dial_accepted(const SimDialPtr& dial, std::uint32_t to) {
  SimPathState* state = nullptr;
  if (const auto found = paths.find((std::uint64_t{dial->from} << 32U) | to);
      found != paths.end()) {
    state = &found->second;
  }
  const double rate = path(dial->from, to).duplicate_dials;
  const bool twice =
      (state != nullptr && state->duplicate_next) || (rate > 0.0 && dial_random.uniform() < rate);
  if (twice) {
    if (state != nullptr) {
      state->duplicate_next = false;
    }
    // Before or after the good one, within ten times the delay.
    const bool dead_first = dial_random.below(2) == 0;
    const auto span = std::max<Duration::rep>(path(dial->from, to).delay.count() * 10, 1);
    const Duration gap{
        static_cast<Duration::rep>(dial_random.below(static_cast<std::uint64_t>(span)))};
    offer_duplicate(dial, to, dead_first ? Duration{0} : gap);
  }
  dial->connection = connect(dial->from, to, dial->purpose);
  offer(to, dial->connection);
  at(now + path(to, dial->from).delay, no_node, [this, dial] { dial_answered(dial); });
}

/// The acceptor's answer reaches the dialler, or is lost and sent again.
void SimWorldImpl::dial_answered(const SimDialPtr& dial) {
  if (dial->finished || !nodes[dial->from]->alive) {
    return;
  }
  const std::uint32_t to = dial->connection->ends[1].node;
  if (blocked(to, dial->from)) {
    at(now + dial->retry, no_node, [this, dial] { dial_answered(dial); });
    dial->retry = std::min<Duration>(dial->retry * 2, std::chrono::seconds{5});
    return;
  }
  at(now, dial->from, [this, dial, to] {
    if (dial->finished) {
      return;
    }
    OpenStream open;
    open.stream = std::make_shared<SimStream>(dial->connection, 0);
    open.peer = nodes[to]->id;
    open.purpose = dial->purpose;
    dial->connection = nullptr;
    dial_done(dial, std::move(open));
  });
}

void SimWorldImpl::dial_done(const SimDialPtr& dial, expected<OpenStream> result) {
  if (dial->finished) {
    return;
  }
  dial->finished = true;
  queue.cancel(dial->timer);
  if (!result) {
    log(dial->from, "dial " + dial->address + " failed: " + result.error().text());
    if (dial->connection) {
      // The acceptor has a connection that its peer has given up.
      vanish(dial->connection, 0);
      finish(dial->connection, 0, result.error());
    }
  }
  const Transport::DialHandler done = std::move(dial->done);
  dial->done = nullptr;
  if (done) {
    done(std::move(result));
  }
}

/// Hands the acceptor its side of a connection.
void SimWorldImpl::offer(std::uint32_t to, const SimConnectionPtr& connection) {
  at(now, to, [this, to, connection] {
    log(to, "accepts #" + std::to_string(connection->id) + " from " +
                short_string(nodes[connection->ends[0].node]->id) + " (" +
                std::string(name(connection->purpose)) + ")");
    OpenStream open;
    open.stream = std::make_shared<SimStream>(connection, 1);
    open.peer = nodes[connection->ends[0].node]->id;
    open.purpose = connection->purpose;
    const Transport::AcceptHandler accept = nodes[to]->accept;
    if (accept) {
      accept(std::move(open));
    }
  });
}

/// The same dial once more: nobody is at the other end.
void SimWorldImpl::offer_duplicate(const SimDialPtr& dial, std::uint32_t to, Duration delay) {
  at(now + delay, no_node, [this, dial, to] {
    if (!nodes[to]->alive) {
      return;
    }
    const SimConnectionPtr ghost = connect(dial->from, to, dial->purpose);
    vanish(ghost, 0);
    finish(ghost, 0, error{ec::duplicate, "a second arrival of one dial"});
    offer(to, ghost);
  });
}

}  // namespace troupe::net
