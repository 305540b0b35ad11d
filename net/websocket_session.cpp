#include "net/websocket_session.hpp"

#include <atomic>
#include <deque>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <boost/beast/websocket/stream.hpp>
#include <spdlog/spdlog.h>

namespace troupe::net {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace websocket = beast::websocket;
using boost::system::error_code;

namespace {

constexpr std::size_t max_close_reason = 120;
/// Counted per queued message, so that empty messages fill the queue as well.
constexpr std::size_t message_overhead = 64;

class Session final : public WebSocketSession,
                      public AsioExecutor::Resident,
                      public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<EndpointCore> core, std::unique_ptr<HttpSocket> socket,
          HttpRequest request)
      : core_(std::move(core)),
        socket_(std::move(socket)),
        stream_(*socket_),
        close_timer_(core_->executor->context()),
        request_(std::move(request)) {
    ++core_->counters.websockets;
  }
  ~Session() override {
    --core_->counters.websockets;
    core_->executor->remove_resident(this);
  }

  void accept(beast::http::request<beast::http::string_body> raw, WebSocketHandler handler);

  bool send_text(std::string text) override { return send(true, std::move(text)); }
  bool send_binary(std::string bytes) override { return send(false, std::move(bytes)); }
  void close(std::uint16_t code, std::string reason) override;
  void on_text(std::function<void(std::string)> callback) override { text_ = std::move(callback); }
  void on_binary(std::function<void(std::string)> callback) override {
    binary_ = std::move(callback);
  }
  void on_close(std::function<void()> callback) override { closed_ = std::move(callback); }
  const HttpRequest& request() const noexcept override { return request_; }
  void abort(const error& reason) override;

 private:
  struct Message {
    std::string content;
    bool text = true;
    std::size_t cost() const noexcept { return content.size() + message_overhead; }
  };

  bool send(bool text, std::string content);
  void pump();
  void write_front();
  void read();
  void received();
  void start_close();
  void end();
  void guarded(const std::function<void()>& callback);

  std::shared_ptr<EndpointCore> core_;
  std::unique_ptr<HttpSocket> socket_;
  websocket::stream<HttpSocket&, false> stream_;
  asio::steady_timer close_timer_;
  HttpRequest request_;

  // Loop thread only.
  beast::http::request<beast::http::string_body> raw_;
  beast::flat_buffer buffer_;
  std::function<void(std::string)> text_;
  std::function<void(std::string)> binary_;
  std::function<void()> closed_;
  std::deque<Message> writing_;  // the front is on its way
  bool write_active_ = false;
  bool close_wanted_ = false;
  bool close_sent_ = false;
  bool ended_here_ = false;
  websocket::close_reason close_reason_;

  std::mutex mutex_;  // guards what follows
  std::deque<Message> queue_;
  std::size_t queued_cost_ = 0;  // of everything not yet written
  bool pump_posted_ = false;
  bool ended_ = false;
};

void Session::accept(beast::http::request<beast::http::string_body> raw, WebSocketHandler handler) {
  if (!core_->executor->add_resident(this, weak_from_this())) {
    return;
  }
  raw_ = std::move(raw);
  const HttpLimits& limits = core_->config.limits;
  websocket::stream_base::timeout timeout;
  timeout.handshake_timeout =
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(limits.write_timeout);
  timeout.idle_timeout = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      limits.websocket_idle_timeout);
  timeout.keep_alive_pings = true;
  stream_.set_option(timeout);
  stream_.read_message_max(limits.websocket_message_bytes);
  stream_.write_buffer_bytes(std::size_t{64} << 10U);
  stream_.auto_fragment(false);
  stream_.async_accept(
      raw_, [self = shared_from_this(), handler = std::move(handler)](const error_code& failure) {
        self->raw_ = {};
        if (failure) {
          self->end();
          return;
        }
        self->guarded([&] { handler(self); });
        self->read();
      });
}

/// A callback that throws costs the session its connection, not the node its loop.
void Session::guarded(const std::function<void()>& callback) {
  try {
    callback();
  } catch (const std::exception& ex) {
    spdlog::error("a WebSocket callback of {} threw: {}", request_.path, ex.what());
    close(1011, "internal error");
  }
}

bool Session::send(bool text, std::string content) {
  Message message{std::move(content), text};
  bool post = false;
  {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      return false;
    }
    if (queued_cost_ + message.cost() > core_->config.limits.websocket_queue_bytes) {
      ended_ = true;
      queue_.clear();
    } else {
      queued_cost_ += message.cost();
      queue_.push_back(std::move(message));
      post = !std::exchange(pump_posted_, true);
      if (!post) {
        return true;
      }
    }
  }
  if (post) {
    core_->executor->post([self = shared_from_this()] { self->pump(); });
    return true;
  }
  core_->executor->post([self = shared_from_this()] {
    self->core_->log_refusal("dropping the WebSocket of " + self->request_.peer +
                             ": it does not read, and its queue is full");
    self->end();
  });
  return false;
}

void Session::pump() {
  {
    const std::lock_guard lock(mutex_);
    pump_posted_ = false;
    while (!queue_.empty()) {
      writing_.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
  }
  if (!write_active_) {
    write_front();
  }
}

void Session::write_front() {
  if (ended_here_ || close_sent_) {
    return;
  }
  if (writing_.empty()) {
    if (close_wanted_) {
      start_close();
    }
    return;
  }
  write_active_ = true;
  stream_.text(writing_.front().text);
  stream_.async_write(asio::buffer(writing_.front().content),
                      [self = shared_from_this()](const error_code& failure, std::size_t) {
                        self->write_active_ = false;
                        if (failure) {
                          self->end();
                          return;
                        }
                        {
                          const std::lock_guard lock(self->mutex_);
                          self->queued_cost_ -= self->writing_.front().cost();
                        }
                        self->writing_.pop_front();
                        self->write_front();
                      });
}

void Session::read() {
  stream_.async_read(buffer_, [self = shared_from_this()](const error_code& failure, std::size_t) {
    if (failure) {
      self->end();
      return;
    }
    self->received();
  });
}

void Session::received() {
  std::string content(static_cast<const char*>(buffer_.data().data()), buffer_.size());
  buffer_.clear();
  if (!ended_here_) {
    const auto& callback = stream_.got_text() ? text_ : binary_;
    if (callback) {
      guarded([&] { callback(std::move(content)); });
    }
    read();
  }
}

void Session::close(std::uint16_t code, std::string reason) {
  reason.resize(std::min(reason.size(), max_close_reason));
  core_->executor->post([self = shared_from_this(), code, reason = std::move(reason)] {
    if (!self->close_wanted_ && !self->ended_here_) {
      self->close_reason_ = {static_cast<websocket::close_code>(code), reason};
      self->close_wanted_ = true;
      if (!self->write_active_) {
        self->pump();
      }
    }
  });
}

void Session::start_close() {
  close_sent_ = true;
  close_timer_.expires_after(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::seconds{5}));
  close_timer_.async_wait([self = shared_from_this()](const error_code& cancelled) {
    if (!cancelled) {
      self->end();
    }
  });
  stream_.async_close(close_reason_,
                      [self = shared_from_this()](const error_code&) { self->end(); });
}

void Session::end() {
  if (std::exchange(ended_here_, true)) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    queue_.clear();
  }
  socket_->close();
  close_timer_.cancel();
  core_->executor->remove_resident(this);
  const auto closed = std::move(closed_);
  // Callbacks usually hold the session: let them go. Not here, one of them may be running.
  core_->executor->post([self = shared_from_this(), closed] {
    if (closed) {
      self->guarded(closed);
    }
    self->text_ = nullptr;
    self->binary_ = nullptr;
    self->closed_ = nullptr;
  });
}

void Session::abort(const error&) { end(); }

}  // namespace

void serve_websocket(std::shared_ptr<EndpointCore> core, std::unique_ptr<HttpSocket> socket,
                     beast::http::request<beast::http::string_body> raw, HttpRequest request,
                     WebSocketHandler handler) {
  const auto session =
      std::make_shared<Session>(std::move(core), std::move(socket), std::move(request));
  session->accept(std::move(raw), std::move(handler));
}

}  // namespace troupe::net
