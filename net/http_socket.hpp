// Why: one stream type for HTTP, WebSocket and the upgrade over plaintext and TLS, so that Beast's
// templates are compiled once, and the place where a connection leaves Beast for a `TcpStream`.
// Thread-safety: none; belongs to its loop. Internal to net/.
#pragma once

#include <sys/socket.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/role.hpp>
#include <boost/beast/core/stream_traits.hpp>
#include <openssl/ssl.h>

#include "net/tcp_stream.hpp"
#include "net/tls.hpp"

namespace troupe::net {

/// "127.0.0.1:4711", "[::1]:4711".
std::string to_text(const boost::asio::ip::tcp::endpoint& endpoint);

class HttpSocket {
 public:
  using socket_type = boost::asio::ip::tcp::socket;
  using tls_type = boost::asio::ssl::stream<socket_type&>;
  using executor_type = socket_type::executor_type;

  explicit HttpSocket(socket_type socket) : socket_(std::move(socket)) {}
  HttpSocket(const HttpSocket&) = delete;
  HttpSocket& operator=(const HttpSocket&) = delete;

  executor_type get_executor() { return socket_.get_executor(); }
  socket_type& socket() noexcept { return socket_; }
  bool encrypted() const noexcept { return tls_.has_value(); }

  /// Handshakes as `role`; `handler(error_code)`. `dialled_host` is empty for a server.
  template <class Handler>
  void async_handshake(const TlsContext& context, boost::beast::role_type role,
                       std::string dialled_host, Handler&& handler) {
    const bool client = role == boost::beast::role_type::client;
    SSL_CTX* raw = client ? context.client() : context.server();
    SSL_CTX_up_ref(raw);
    boost::asio::ssl::context wrapped(raw);  // gives the reference back
    tls_.emplace(socket_, wrapped);
    tls_->set_verify_callback([this, host = std::move(dialled_host), cluster = context.cluster()](
                                  bool preverified, boost::asio::ssl::verify_context& store) {
      return verify_peer(preverified, store.native_handle(), host, cluster, refusal_);
    });
    tls_->async_handshake(client ? tls_type::client : tls_type::server,
                          std::forward<Handler>(handler));
  }

  /// Why we refused the peer's certificate, or empty.
  const std::string& refusal() const noexcept { return refusal_; }

  template <class Buffers, class Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) {
      tls_->async_read_some(buffers, std::forward<Handler>(handler));
    } else {
      socket_.async_read_some(buffers, std::forward<Handler>(handler));
    }
  }

  template <class Buffers, class Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) {
      tls_->async_write_some(buffers, std::forward<Handler>(handler));
    } else {
      socket_.async_write_some(buffers, std::forward<Handler>(handler));
    }
  }

  void close() noexcept {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

  /// Takes socket and TLS state out. No operation may be under way.
  DetachedSocket detach() {
    DetachedSocket out;
    boost::system::error_code failure;
    const auto remote = socket_.remote_endpoint(failure);
    out.ipv6 = remote.address().is_v6();
    out.peer_address = failure ? "an unknown address" : to_text(remote);
    if (tls_) {
      out.ssl = tls_->native_handle();
      SSL_up_ref(out.ssl);
      // Records that Asio has fed to OpenSSL's side of its BIO pair and OpenSSL has not read.
      // (Asio's own input buffer is as large as the pair and therefore empty between operations.)
      if (BIO* input = SSL_get_rbio(out.ssl)) {
        out.received_cipher.resize(BIO_ctrl_pending(input));
        if (!out.received_cipher.empty()) {
          const int got = BIO_read(input, out.received_cipher.data(),
                                   static_cast<int>(out.received_cipher.size()));
          out.received_cipher.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
        }
      }
      // The callback refers to this object.
      SSL_set_verify(out.ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
      tls_.reset();
    }
    out.fd = socket_.release(failure);
    if (failure) {
      out.fd = -1;
    }
    return out;
  }

 private:
  socket_type socket_;
  std::optional<tls_type> tls_;
  std::string refusal_;
};

// What Beast's WebSocket asks of the lowest layer (found by argument-dependent lookup).
inline void beast_close_socket(HttpSocket& socket) { socket.close(); }

inline void teardown(boost::beast::role_type, HttpSocket& socket,
                     boost::system::error_code& failure) {
  socket.socket().shutdown(boost::asio::ip::tcp::socket::shutdown_both, failure);
}

/// The close frames have been exchanged, nobody waits for more: no need to read to the end.
template <class Handler>
void async_teardown(boost::beast::role_type, HttpSocket& socket, Handler&& handler) {
  boost::system::error_code ignored;
  socket.socket().shutdown(boost::asio::ip::tcp::socket::shutdown_send, ignored);
  boost::asio::post(socket.get_executor(), [moved = std::forward<Handler>(handler)]() mutable {
    moved(boost::system::error_code{});
  });
}

}  // namespace troupe::net
