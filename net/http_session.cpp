#include "net/http_session.hpp"

#include <array>
#include <optional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <spdlog/spdlog.h>

#include "net/http_socket.hpp"
#include "net/websocket_session.hpp"

namespace troupe::net {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

namespace {

constexpr std::size_t read_ahead = std::size_t{64} << 10U;
constexpr std::size_t first_read = 4096;
constexpr std::size_t linger_bytes = std::size_t{4} << 20U;
constexpr unsigned char tls_handshake_record = 0x16;

std::string text_of(beast::string_view view) { return {view.data(), view.size()}; }

class HttpSession final : public AsioExecutor::Resident,
                          public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(std::shared_ptr<EndpointCore> core, asio::ip::tcp::socket socket)
      : core_(std::move(core)),
        slot_(core_),
        socket_(std::make_unique<HttpSocket>(std::move(socket))),
        deadline_(core_->executor->context()),
        buffer_(core_->config.limits.header_bytes + read_ahead) {}
  ~HttpSession() override { core_->executor->remove_resident(this); }

  void start();
  void abort(const error&) override { drop(); }

 private:
  using Step = void (HttpSession::*)();

  void look_at_first_byte();
  void handshake();
  void reject_plaintext();
  void reject_tls();
  void next_request();
  void read_header();
  void header_failed(const error_code& failure);
  void header_done();
  void read_body();
  void dispatch();
  void dispatch_async(const AsyncHttpHandler& handler);
  void answer(HttpResponse response);
  void refuse(unsigned status, const std::string& text, HttpHeaders headers = {});
  void write(HttpResponse response, bool keep_alive);
  void written(bool keep_alive);
  bool fill_request();

  bool wants_peer() const;
  expected<PeerArrival> check_peer(unsigned& status) const;
  void upgrade_peer();
  void hand_over_peer(PeerArrival arrival);
  void upgrade_websocket();

  void arm(Duration time, Step expired);
  void expired_reading();
  void expired_answer();
  void drop();
  void linger();
  void linger_read();

  std::shared_ptr<EndpointCore> core_;
  UnauthenticatedSlot slot_;
  std::unique_ptr<HttpSocket> socket_;
  asio::steady_timer deadline_;
  Step expired_ = nullptr;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  HttpRequest request_;
  http::response<http::string_body> response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  std::uint64_t awaited_ = 0;  // number of the asynchronous request that has no answer yet, or 0
  std::uint64_t last_async_ = 0;
  std::string peer_;
  std::size_t linger_left_ = linger_bytes;
};

void HttpSession::start() {
  error_code failure;
  const auto remote = socket_->socket().remote_endpoint(failure);
  if (failure || !core_->executor->add_resident(this, weak_from_this())) {
    return;
  }
  peer_ = to_text(remote);
  socket_->socket().set_option(asio::ip::tcp::no_delay(true), failure);
  arm(core_->config.limits.header_timeout, &HttpSession::expired_reading);
  socket_->socket().async_wait(asio::ip::tcp::socket::wait_read,
                               [self = shared_from_this()](const error_code& error) {
                                 if (!error) {
                                   self->look_at_first_byte();
                                 }
                               });
}

void HttpSession::look_at_first_byte() {
  unsigned char first = 0;
  if (::recv(socket_->socket().native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1) {
    drop();
    return;
  }
  const bool speaks_tls = first == tls_handshake_record;
  if (core_->config.tls && speaks_tls) {
    handshake();
  } else if (core_->config.tls) {
    reject_plaintext();
  } else if (speaks_tls) {
    reject_tls();
  } else {
    read_header();
  }
}

void HttpSession::handshake() {
  socket_->async_handshake(
      *core_->config.tls, beast::role_type::server, {},
      [self = shared_from_this()](const error_code& failure) {
        if (!failure) {
          self->read_header();
          return;
        }
        if (failure != asio::error::operation_aborted) {
          ++self->core_->counters.bad_requests;
          const auto code = static_cast<unsigned long>(failure.value());
          const bool from_tls = failure.category() == asio::error::get_ssl_category();
          self->core_->log_refusal("refused " + self->peer_ + ": TLS handshake failed: " +
                                   (from_tls
                                        ? describe_handshake_failure(code, self->socket_->refusal())
                                        : failure.message()));
        }
        self->linger();  // the alert must arrive
      });
}

void HttpSession::reject_plaintext() {
  core_->log_refusal("refused " + peer_ + ": it does not speak TLS, and this port requires it");
  refuse(400, "this port requires TLS 1.3 with a certificate of the cluster's CA");
}

/// A TLS alert (fatal, protocol_version), so that the client can say what is wrong.
void HttpSession::reject_tls() {
  ++core_->counters.bad_requests;
  core_->log_refusal("refused " + peer_ + ": it speaks TLS, and this node listens in plaintext");
  static constexpr std::array<unsigned char, 7> alert{0x15, 3, 3, 0, 2, 2, 70};
  ::send(socket_->socket().native_handle(), alert.data(), alert.size(),
         MSG_NOSIGNAL | MSG_DONTWAIT);
  linger();
}

// ---- reading ----------------------------------------------------------------------------------

void HttpSession::next_request() {
  if (buffer_.size() > 0) {
    arm(core_->config.limits.header_timeout, &HttpSession::expired_reading);
    read_header();
    return;
  }
  arm(core_->config.limits.idle_timeout, &HttpSession::drop);
  socket_->async_read_some(
      buffer_.prepare(first_read),
      [self = shared_from_this()](const error_code& failure, std::size_t count) {
        if (failure) {
          self->drop();
          return;
        }
        self->buffer_.commit(count);
        self->arm(self->core_->config.limits.header_timeout, &HttpSession::expired_reading);
        self->read_header();
      });
}

void HttpSession::read_header() {
  const HttpLimits& limits = core_->config.limits;
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(limits.header_bytes));
  parser_->body_limit(limits.body_bytes);
  http::async_read_header(*socket_, buffer_, *parser_,
                          [self = shared_from_this()](const error_code& failure, std::size_t) {
                            if (failure) {
                              self->header_failed(failure);
                            } else {
                              self->header_done();
                            }
                          });
}

void HttpSession::header_failed(const error_code& failure) {
  if (failure == http::error::header_limit || failure == http::error::buffer_overflow) {
    refuse(431, "the request header is larger than " +
                    std::to_string(core_->config.limits.header_bytes) + " bytes");
  } else if (failure == http::error::body_limit) {
    refuse(413, "the request body is larger than " +
                    std::to_string(core_->config.limits.body_bytes) + " bytes");
  } else if (failure != http::error::end_of_stream && failure != http::error::partial_message &&
             failure.category() == http::make_error_code(http::error::bad_method).category()) {
    refuse(400, "malformed request: " + failure.message());
  } else {
    drop();
  }
}

void HttpSession::header_done() {
  if (!fill_request()) {
    refuse(400, "malformed request target");
    return;
  }
  if (wants_peer()) {
    upgrade_peer();
  } else if (beast::websocket::is_upgrade(parser_->get())) {
    upgrade_websocket();
  } else if (parser_->is_done()) {
    dispatch();
  } else if (beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    arm(core_->config.limits.write_timeout, &HttpSession::drop);
    auto go_on = std::make_shared<http::response<http::empty_body>>(http::status::continue_, 11);
    http::async_write(*socket_, *go_on,
                      [self = shared_from_this(), go_on](const error_code& failure, std::size_t) {
                        if (failure) {
                          self->drop();
                        } else {
                          self->read_body();
                        }
                      });
  } else {
    read_body();
  }
}

bool HttpSession::fill_request() {
  const auto& raw = parser_->get();
  request_ = {};
  request_.method = text_of(raw.method_string());
  request_.target = text_of(raw.target());
  request_.peer = peer_;
  const std::size_t question = request_.target.find('?');
  auto path = percent_decode(std::string_view{request_.target}.substr(0, question));
  if (!path || path->empty() || path->front() != '/' || path->find('\0') != std::string::npos) {
    return false;
  }
  request_.path = std::move(*path);
  if (question != std::string::npos) {
    request_.query = request_.target.substr(question + 1);
  }
  for (const auto& field : raw) {
    request_.headers.emplace_back(text_of(field.name_string()), text_of(field.value()));
  }
  return true;
}

void HttpSession::read_body() {
  arm(core_->config.limits.body_timeout, &HttpSession::expired_reading);
  http::async_read(*socket_, buffer_, *parser_,
                   [self = shared_from_this()](const error_code& failure, std::size_t) {
                     if (failure) {
                       self->header_failed(failure);
                     } else {
                       self->dispatch();
                     }
                   });
}

// ---- answering --------------------------------------------------------------------------------

void HttpSession::dispatch() {
  request_.body = std::move(parser_->get().body());
  const auto found = core_->find(request_.method, request_.path);
  if (!found.path_exists) {
    answer({404, "text/plain; charset=utf-8", "there is nothing at this path\n", {}});
    return;
  }
  if (!found.allowed.empty()) {
    answer({405,
            "text/plain; charset=utf-8",
            "this path allows " + found.allowed + "\n",
            {{"Allow", found.allowed}}});
    return;
  }
  try {
    if (found.route.async_handler) {
      dispatch_async(found.route.async_handler);
    } else {
      answer(found.route.handler(request_));
    }
  } catch (const std::exception& ex) {
    spdlog::error("the handler of {} {} threw: {}", request_.method, request_.path, ex.what());
    awaited_ = 0;
    answer({500, "text/plain; charset=utf-8", "internal error\n", {}});
  }
}

void HttpSession::dispatch_async(const AsyncHttpHandler& handler) {
  awaited_ = ++last_async_;
  arm(core_->config.limits.async_timeout, &HttpSession::expired_answer);
  handler(request_, [weak = weak_from_this(), executor = core_->executor,
                     number = awaited_](HttpResponse response) {
    executor->post([weak, number, response = std::move(response)]() mutable {
      const auto self = weak.lock();
      if (self && self->awaited_ == number) {
        self->awaited_ = 0;
        self->answer(std::move(response));
      }
    });
  });
}

void HttpSession::expired_answer() {
  if (awaited_ != 0) {
    awaited_ = 0;
    answer({504, "text/plain; charset=utf-8", "no answer in time\n", {}});
  }
}

void HttpSession::answer(HttpResponse response) {
  ++core_->counters.requests;
  write(std::move(response), parser_->get().keep_alive());
}

/// An answer of the server itself, after which the connection ends.
void HttpSession::refuse(unsigned status, const std::string& text, HttpHeaders headers) {
  ++core_->counters.bad_requests;
  write({status, "text/plain; charset=utf-8", text + "\n", std::move(headers)}, false);
}

void HttpSession::write(HttpResponse response, bool keep_alive) {
  response_ = {};
  response_.version(11);
  response_.result(response.status);
  response_.set(http::field::server, "troupe");
  response_.set(http::field::content_type, response.content_type);
  response_.set("X-Content-Type-Options", "nosniff");
  for (const auto& [name, value] : response.headers) {
    // A line break would let whoever chose the value write headers of their own.
    if (name.find_first_of("\r\n") == std::string::npos &&
        value.find_first_of("\r\n") == std::string::npos) {
      response_.insert(name, value);
    }
  }
  response_.keep_alive(keep_alive);
  const std::size_t size = response.body.size();
  response_.body() = std::move(response.body);
  response_.content_length(size);
  serializer_.emplace(response_);
  arm(core_->config.limits.write_timeout, &HttpSession::drop);
  const auto done = [self = shared_from_this(), keep_alive](const error_code& failure,
                                                            std::size_t) {
    if (failure) {
      self->drop();
    } else {
      self->written(keep_alive);
    }
  };
  if (request_.method == "HEAD") {
    serializer_->split(true);
    http::async_write_header(*socket_, *serializer_, done);
  } else {
    http::async_write(*socket_, *serializer_, done);
  }
}

void HttpSession::written(bool keep_alive) {
  response_ = {};
  request_ = {};
  if (keep_alive) {
    next_request();
  } else {
    linger();
  }
}

// ---- upgrades ---------------------------------------------------------------------------------

bool HttpSession::wants_peer() const { return request_.path == peer_path; }

expected<PeerArrival> HttpSession::check_peer(unsigned& status) const {
  const auto& raw = parser_->get();
  status = 400;
  if (raw.method() != http::verb::get || !parser_->is_done()) {
    return fail(ec::malformed, "a peer connects with GET and without a body");
  }
  if (!beast::iequals(raw[http::field::upgrade],
                      beast::string_view{peer_protocol.data(), peer_protocol.size()}) ||
      !http::token_list{raw[http::field::connection]}.exists("upgrade")) {
    status = 426;
    return fail(ec::malformed,
                "this path is for peers: it needs 'Connection: Upgrade' and "
                "'Upgrade: troupe/1'");
  }
  const std::string cluster = text_of(raw["Troupe-Cluster"]);
  if (cluster != core_->config.cluster) {
    status = 409;
    return fail(ec::handshake_refused, "the dialled node belongs to cluster '" +
                                           core_->config.cluster + "', the dialling one to '" +
                                           cluster.substr(0, 100) + "'");
  }
  PeerArrival arrival;
  const auto node = NodeId::parse(text_of(raw["Troupe-Node"]));
  if (!node || !*node) {
    return fail(ec::malformed, "'Troupe-Node' must be 32 hexadecimal digits");
  }
  arrival.node = *node;
  if (arrival.node == core_->config.node) {
    status = 409;
    return fail(ec::handshake_refused, "node " + short_string(arrival.node) + " dialled itself");
  }
  const auto purpose = raw["Troupe-Purpose"];
  if (purpose != "link" && purpose != "heartbeat") {
    return fail(ec::malformed, "'Troupe-Purpose' must be link or heartbeat");
  }
  arrival.purpose = purpose == "link" ? StreamPurpose::link : StreamPurpose::heartbeat;
  if (!core_->peer_handler()) {
    status = 503;
    return fail(ec::closed, "this node does not accept peers");
  }
  return arrival;
}

void HttpSession::upgrade_peer() {
  unsigned status = 0;
  auto arrival = check_peer(status);
  if (!arrival) {
    ++core_->counters.peers_refused;
    core_->log_refusal("refused the peer " + peer_ + ": " + arrival.error().text());
    HttpHeaders headers;
    if (status == 426) {
      headers = {{"Upgrade", std::string{peer_protocol}}, {"Connection", "upgrade"}};
    }
    refuse(status, arrival.error().text(), std::move(headers));
    return;
  }
  auto accepted =
      std::make_shared<http::response<http::empty_body>>(http::status::switching_protocols, 11);
  accepted->set(http::field::upgrade,
                beast::string_view{peer_protocol.data(), peer_protocol.size()});
  accepted->set(http::field::connection, "Upgrade");
  accepted->set("Troupe-Node", to_string(core_->config.node));
  accepted->set("Troupe-Cluster", core_->config.cluster);
  arm(core_->config.limits.write_timeout, &HttpSession::drop);
  auto shared = std::make_shared<PeerArrival>(std::move(*arrival));
  http::async_write(
      *socket_, *accepted,
      [self = shared_from_this(), accepted, shared](const error_code& failure, std::size_t) {
        if (failure) {
          self->drop();
        } else {
          self->hand_over_peer(std::move(*shared));
        }
      });
}

void HttpSession::hand_over_peer(PeerArrival arrival) {
  deadline_.cancel();
  expired_ = nullptr;
  core_->executor->remove_resident(this);
  const auto early = buffer_.data();
  arrival.socket = socket_->detach();
  arrival.socket.received.assign(static_cast<const char*>(early.data()), early.size());
  slot_.release();
  ++core_->counters.peers;
  if (const auto handler = core_->peer_handler()) {
    handler(std::move(arrival));
  }
}

void HttpSession::upgrade_websocket() {
  const auto& raw = parser_->get();
  auto handler = core_->find_websocket(request_.path);
  if (!handler) {
    refuse(404, "there is no WebSocket at this path");
    return;
  }
  if (core_->counters.websockets >= core_->config.limits.websockets) {
    refuse(503, "too many WebSockets are open");
    return;
  }
  if (buffer_.size() > 0) {
    refuse(400, "data before the WebSocket handshake has ended");
    return;
  }
  // A page from elsewhere must not reach a node through the browser of whoever looks at that page.
  const std::string origin = text_of(raw[http::field::origin]);
  const std::string host = text_of(raw[http::field::host]);
  if (!origin.empty() && origin != "http://" + host && origin != "https://" + host) {
    core_->log_refusal("refused the WebSocket of " + peer_ + ": its page is from another origin");
    refuse(403, "the page that opens a WebSocket must come from this node");
    return;
  }
  deadline_.cancel();
  expired_ = nullptr;
  core_->executor->remove_resident(this);
  slot_.release();
  serve_websocket(core_, std::move(socket_), parser_->release(), std::move(request_),
                  std::move(handler));
}

// ---- time and the end -------------------------------------------------------------------------

void HttpSession::arm(Duration time, Step expired) {
  expired_ = expired;
  deadline_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(time));
  deadline_.async_wait([self = shared_from_this()](const error_code&) {
    // The expiry tells whether this wait is the current one.
    if (self->expired_ != nullptr && self->deadline_.expiry() <= std::chrono::steady_clock::now()) {
      const Step step = std::exchange(self->expired_, nullptr);
      ((*self).*step)();
    }
  });
}

void HttpSession::expired_reading() {
  ++core_->counters.bad_requests;
  core_->log_refusal("dropped " + peer_ + ": its request took too long");
  drop();
}

void HttpSession::drop() {
  expired_ = nullptr;
  deadline_.cancel();
  core_->executor->remove_resident(this);
  if (socket_) {
    socket_->close();
  }
}

/// Closing with unread input would make the kernel drop the answer: say that we are done, then read
/// and drop until the client has noticed.
void HttpSession::linger() {
  error_code ignored;
  socket_->socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  arm(std::chrono::seconds{1}, &HttpSession::drop);
  linger_read();
}

void HttpSession::linger_read() {
  buffer_.clear();
  socket_->socket().async_read_some(
      buffer_.prepare(core_->config.limits.header_bytes),
      [self = shared_from_this()](const error_code& failure, std::size_t count) {
        if (failure || count > self->linger_left_) {
          self->drop();
          return;
        }
        self->linger_left_ -= count;
        self->linger_read();
      });
}

}  // namespace

void serve_http(std::shared_ptr<EndpointCore> core, asio::ip::tcp::socket socket) {
  std::make_shared<HttpSession>(std::move(core), std::move(socket))->start();
}

}  // namespace troupe::net
