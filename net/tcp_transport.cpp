#include "net/tcp_transport.hpp"

#include <mutex>

#include <spdlog/spdlog.h>

#include "net/dialer.hpp"

namespace troupe::net {

struct TcpTransport::Impl {
  TcpTransportConfig config;
  std::shared_ptr<AsioExecutor> link_loop;
  std::shared_ptr<AsioExecutor> heartbeat_loop;
  std::unique_ptr<Endpoint> endpoint;
  std::mutex mutex;
  AcceptHandler accept;
  bool down = false;

  const std::shared_ptr<AsioExecutor>& loop(StreamPurpose purpose) const {
    return purpose == StreamPurpose::link ? link_loop : heartbeat_loop;
  }

  AcceptHandler accept_handler() {
    const std::lock_guard lock(mutex);
    return down ? AcceptHandler{} : accept;
  }
};

TcpTransport::TcpTransport(TcpTransportConfig config) : impl_(std::make_shared<Impl>()) {
  impl_->link_loop = AsioExecutor::create("troupe-link");
  impl_->heartbeat_loop = AsioExecutor::create("troupe-beat");
  impl_->endpoint = std::make_unique<Endpoint>(impl_->link_loop, config.endpoint);
  impl_->config = std::move(config);
}

TcpTransport::~TcpTransport() { shutdown(); }

Executor& TcpTransport::executor(StreamPurpose purpose) { return *impl_->loop(purpose); }

Endpoint& TcpTransport::endpoint() noexcept { return *impl_->endpoint; }

void TcpTransport::on_accept(AcceptHandler handler) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->accept = std::move(handler);
  }
  impl_->endpoint->on_peer([weak = std::weak_ptr<Impl>(impl_)](PeerArrival arrival) {
    const auto impl = weak.lock();
    if (!impl) {
      return;
    }
    const auto& loop = impl->loop(arrival.purpose);
    const auto hand_over = [weak](const std::shared_ptr<AsioExecutor>& target, PeerArrival& who) {
      const auto owner = weak.lock();
      const auto accept = owner ? owner->accept_handler() : AcceptHandler{};
      if (accept) {
        accept({make_tcp_stream(target, std::move(who.socket), owner->config.stream), who.node,
                who.purpose});
      }
    };
    if (loop->on_thread()) {
      hand_over(loop, arrival);
    } else {
      loop->post([hand_over, loop, moved = std::make_shared<PeerArrival>(std::move(arrival))] {
        hand_over(loop, *moved);
      });
    }
  });
}

void TcpTransport::dial(std::string address, StreamPurpose purpose, Duration timeout,
                        DialHandler done) {
  const auto& settings = impl_->config.endpoint;
  DialRequest request{std::move(address), purpose,          timeout,
                      settings.node,      settings.cluster, settings.tls};
  const auto& loop = impl_->loop(purpose);
  dial_peer(loop, std::move(request),
            [loop, purpose, options = impl_->config.stream,
             done = std::move(done)](expected<Dialled> dialled) {
              if (!dialled) {
                done(fail(dialled.error()));
                return;
              }
              done(OpenStream{make_tcp_stream(loop, std::move(dialled->socket), options),
                              dialled->peer, purpose});
            });
}

void TcpTransport::shutdown() {
  {
    const std::lock_guard lock(impl_->mutex);
    if (std::exchange(impl_->down, true)) {
      return;
    }
  }
  impl_->endpoint->stop_listening();
  impl_->link_loop->stop(impl_->config.shutdown_timeout);
  impl_->heartbeat_loop->stop(impl_->config.shutdown_timeout);
  impl_->endpoint->on_peer({});
  const std::lock_guard lock(impl_->mutex);
  impl_->accept = nullptr;
}

}  // namespace troupe::net
