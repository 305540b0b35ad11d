#include "net/connection.hpp"

#include <spdlog/spdlog.h>

#include "net/log_limit.hpp"

namespace troupe::net {

namespace {

LogLimit log_limit;

FrameLimits handshake_limits() {
  FrameLimits limits;
  limits.max_payload = max_handshake_payload;
  return limits;
}

}  // namespace

Connection::Connection(std::weak_ptr<LinkManager> manager, Executor& executor, OpenStream opened,
                       bool dialled, std::string address, LinkManager::ConnectHandler done)
    : manager_(std::move(manager)),
      executor_(executor),
      stream_(std::move(opened.stream)),
      peer_(opened.peer),
      address_(std::move(address)),
      done_(std::move(done)),
      phase_(dialled ? Phase::welcome : Phase::hello),
      reader_(handshake_limits(), *this) {}

Connection::~Connection() = default;

void Connection::start(const Hello& self, Duration timeout) {
  self_ = self;
  timer_ = executor_.schedule(timeout, [weak = weak_from_this()] {
    if (auto connection = weak.lock()) {
      connection->timer_ = 0;
      connection->end({ec::timeout, "the peer did not complete the handshake in time"});
    }
  });
  stream_->start(shared_from_this());
  if (phase_ == Phase::welcome && !send_frame(hello_frame(FrameType::hello, self_))) {
    end({ec::system_error, "the connection does not take the handshake"});
  }
}

bool Connection::send_frame(const std::vector<std::byte>& frame) {
  const ConstBuffer buffer{frame};
  return stream_->write({&buffer, 1}) == frame.size();
}

MutableBuffer Connection::read_window() {
  if (phase_ == Phase::dead) {
    return scratch_;
  }
  return reader_.window();
}

void Connection::on_bytes(std::size_t count) {
  if (phase_ == Phase::dead) {
    return;
  }
  const auto keep = shared_from_this();
  if (auto err = reader_.consume(count)) {
    if (phase_ != Phase::dead) {
      if (!(err == ec::closed)) {  // a goodbye is none of the surprises
        log_limit.warn("connection with node {} ({}) closed: {}", short_string(peer_),
                       stream_->peer_address(), to_string(err));
      }
      end(err);
    }
    return;
  }
  if (phase_ == Phase::attached) {
    const auto manager = manager_.lock();
    if (manager && link_->overwhelmed()) {
      manager->fail_peer(
          peer_, {ec::limit_exceeded, "node " + short_string(peer_) +
                                          " causes more answers than it takes: over 64 MB are not "
                                          "acknowledged"});
      return;
    }
    link_->after_batch();
  }
}

void Connection::on_writable() {
  if (phase_ == Phase::attached) {
    link_->on_stream_writable(stream_.get());
  }
}

void Connection::on_closed(const error& reason) { end(reason); }

// The one way out: closes the stream and tells the manager, once.
void Connection::end(const error& reason) {
  if (phase_ == Phase::dead) {
    return;
  }
  const auto keep = shared_from_this();
  const Phase phase = std::exchange(phase_, Phase::dead);
  finish_handshake();
  stream_->close(reason);
  const auto manager = manager_.lock();
  auto done = std::exchange(done_, nullptr);
  if (phase == Phase::attached) {
    if (manager) {
      manager->on_connection_lost(peer_, stream_.get(), reason);
    }
    link_.reset();
  } else if (phase == Phase::welcome && manager) {
    manager->on_handshake_failed(peer_, address_, reason, std::move(done));
  }
}

void Connection::finish_handshake() {
  if (timer_ != 0) {
    executor_.cancel(std::exchange(timer_, 0));
  }
  if (const auto manager = manager_.lock()) {
    manager->forget(this);
  }
}

error Connection::on_frame(const FrameHeader& header, std::span<const std::byte> payload) {
  switch (phase_) {
    case Phase::hello:
      return header.type == FrameType::hello
                 ? on_hello(payload)
                 : error{ec::malformed, "the first frame is not a hello"};
    case Phase::welcome:
      if (header.type == FrameType::reject) {
        end(parse_reject(payload));
        return {ec::closed, "refused"};
      }
      return header.type == FrameType::welcome
                 ? on_welcome(payload)
                 : error{ec::malformed, "the hello was not answered by a welcome"};
    case Phase::attached:
      if (header.type == FrameType::goodbye) {
        const auto said = parse_reject(payload);
        if (const auto manager = manager_.lock()) {
          manager->fail_peer(peer_, {ec::node_unreachable,
                                     "node " + short_string(peer_) + " has left: " + said.text()});
        }
        return {ec::closed, "goodbye"};
      }
      return link_->on_frame(header, payload);
    case Phase::dead:
      break;
  }
  return {ec::closed, "the connection has ended"};
}

error Connection::on_hello(std::span<const std::byte> payload) {
  auto hello = parse_hello(payload);
  if (!hello) {
    return hello.error();
  }
  if (hello->node != peer_) {
    return refuse({ec::handshake_refused, "node id in the handshake (" + short_string(hello->node) +
                                              ") differs from the upgrade's"});
  }
  if (auto version = check_hello(self_, *hello); !version) {
    return refuse(version.error());
  }
  const auto manager = manager_.lock();
  if (!manager) {
    return {ec::closed, "this node is shutting down"};
  }
  auto link = manager->admit(*this, *hello);
  if (!link) {
    return refuse(link.error());
  }
  become_attached(std::move(*link));
  return {};
}

error Connection::refuse(error reason) {
  // A duplicate or a stale session is part of normal life; the rest somebody has to look at.
  if (reason == ec::duplicate || reason == ec::session_lost) {
    spdlog::debug("refused connection of node {}: {}", short_string(peer_), to_string(reason));
  } else {
    log_limit.warn("refused connection of node {} ({}): {}", short_string(peer_),
                   stream_->peer_address(), to_string(reason));
  }
  send_frame(reject_frame(FrameType::reject, reason));
  end(reason);
  return {ec::closed, "refused"};
}

error Connection::on_welcome(std::span<const std::byte> payload) {
  auto hello = parse_hello(payload);
  if (!hello) {
    return hello.error();
  }
  if (hello->node != peer_) {
    return {ec::malformed, "node id in the handshake differs from the upgrade's"};
  }
  if (auto version = check_hello(self_, *hello); !version) {
    end(version.error());
    return {ec::closed, "refused"};
  }
  const auto manager = manager_.lock();
  if (!manager) {
    return {ec::closed, "this node is shutting down"};
  }
  auto link = manager->on_welcome(*this, *hello);
  if (!link) {
    end(link.error());
    return {ec::closed, "not used"};
  }
  become_attached(std::move(*link));
  if (auto done = std::exchange(done_, nullptr)) {
    done(peer_);
  }
  return {};
}

void Connection::become_attached(std::shared_ptr<Link> link) {
  finish_handshake();
  if (phase_ != Phase::dead) {
    link_ = std::move(link);
    FrameLimits limits = link_->frame_limits();
    limits.allow_unchecked = stream_->encrypted();
    reader_.set_limits(limits);
    phase_ = Phase::attached;
  }
}

expected<std::byte*> Connection::fragment_target(const FrameHeader& header,
                                                 const FragmentHeader& fragment, std::size_t size) {
  if (phase_ != Phase::attached) {
    return fail(ec::malformed, "fragment during the handshake");
  }
  return link_->fragment_target(header, fragment, size);
}

error Connection::on_fragment(const FrameHeader& header, const FragmentHeader& fragment,
                              std::size_t size) {
  if (phase_ != Phase::attached) {
    return {ec::closed, "the connection has ended"};
  }
  return link_->on_fragment(header, fragment, size);
}

}  // namespace troupe::net
