#include "net/dialer.hpp"

#include <netdb.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <spdlog/spdlog.h>

#include "net/endpoint_core.hpp"
#include "net/http_socket.hpp"

namespace troupe::net {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::size_t max_answer = std::size_t{16} << 10U;
constexpr std::size_t max_told = 300;
constexpr int max_lookups = 16;

/// What a stranger said, fit for a log line.
std::string one_line(std::string text) {
  text.resize(std::min({text.size(), max_told, text.find_first_of("\r\n")}));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      c = '?';
    }
  }
  return text;
}

using LookupHandler = std::function<void(expected<std::vector<tcp::endpoint>>)>;

/// getaddrinfo cannot be cancelled and may take half a minute, and nobody may wait for it at the
/// end: a thread of its own, bounded in number, that only holds what it needs.
void look_up(std::shared_ptr<AsioExecutor> executor, const HostPort& where, LookupHandler done) {
  error_code failure;
  const auto numeric = asio::ip::make_address(where.host, failure);
  if (!failure) {
    done(std::vector<tcp::endpoint>{tcp::endpoint{numeric, where.port}});
    return;
  }
  static std::atomic<int> running{0};
  if (++running > max_lookups) {
    --running;
    done(fail(ec::would_block, "too many name look-ups are under way"));
    return;
  }
  std::thread([executor = std::move(executor), where, done = std::move(done)] {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_ADDRCONFIG | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    const int code =
        ::getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found);
    std::vector<tcp::endpoint> endpoints;
    for (addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
      tcp::endpoint endpoint;
      if (entry->ai_addrlen <= endpoint.capacity()) {
        std::memcpy(endpoint.data(), entry->ai_addr, entry->ai_addrlen);
        endpoint.resize(entry->ai_addrlen);
        endpoints.push_back(endpoint);
      }
    }
    if (found != nullptr) {
      ::freeaddrinfo(found);
    }
    --running;
    executor->post([done, code, endpoints = std::move(endpoints), host = where.host] {
      if (endpoints.empty()) {
        done(fail(ec::node_unreachable, "cannot look up '" + host + "': " +
                                            (code != 0 ? ::gai_strerror(code) : "no address")));
      } else {
        done(endpoints);
      }
    });
  }).detach();
}

class Dialer final : public AsioExecutor::Resident, public std::enable_shared_from_this<Dialer> {
 public:
  Dialer(std::shared_ptr<AsioExecutor> executor, DialRequest request,
         std::function<void(expected<Dialled>)> done)
      : executor_(std::move(executor)),
        request_(std::move(request)),
        done_(std::move(done)),
        deadline_(executor_->context()),
        slice_(executor_->context()),
        buffer_(max_answer) {}
  ~Dialer() override {
    executor_->remove_resident(this);
    // The executor stopped before the dial could start.
    if (done_) {
      done_(fail(ec::closed, "dialling " + request_.address + ": this node is shutting down"));
    }
  }

  void start();
  void abort(const error& reason) override { finish(fail(reason.code(), reason.text())); }

 private:
  void connect_next();
  void connected(const error_code& failure);
  void handshake();
  void send_request();
  void read_answer();
  void answered();
  void tls_failed(const error_code& failure, const char* during);
  void give_up(ec code, const std::string& what);
  void finish(expected<Dialled> result);

  std::shared_ptr<AsioExecutor> executor_;
  DialRequest request_;
  std::function<void(expected<Dialled>)> done_;
  asio::steady_timer deadline_;
  asio::steady_timer slice_;  // of the time, for one of several addresses
  HostPort where_;
  std::vector<tcp::endpoint> endpoints_;
  std::size_t next_ = 0;
  std::size_t refused_ = 0;
  std::string last_problem_;
  const char* stage_ = "looking up the name";
  std::unique_ptr<HttpSocket> socket_;
  beast::flat_buffer buffer_;
  http::request<http::empty_body> hello_;
  std::optional<http::response_parser<http::string_body>> answer_;
};

void Dialer::start() {
  if (!executor_->add_resident(this, weak_from_this())) {
    abort({ec::closed, "dialling " + request_.address + ": this node is shutting down"});
    return;
  }
  const auto where = parse_address(request_.address);
  if (!where) {
    finish(fail(where.error()));
    return;
  }
  where_ = *where;
  deadline_.expires_after(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(request_.timeout));
  deadline_.async_wait([self = shared_from_this()](const error_code& cancelled) {
    if (!cancelled) {
      self->give_up(ec::timeout, std::string{"no success in time while "} + self->stage_ +
                                     (self->last_problem_.empty() ? "" : "; before: ") +
                                     self->last_problem_);
    }
  });
  look_up(executor_, where_, [self = shared_from_this()](auto found) {
    if (!self->done_) {
      return;
    }
    if (!found) {
      self->give_up(found.error().code(), found.error().text());
      return;
    }
    self->endpoints_ = std::move(*found);
    self->stage_ = "connecting";
    self->connect_next();
  });
}

void Dialer::connect_next() {
  if (next_ == endpoints_.size()) {
    // Refused at every address: nothing listens there, so the process that did is gone.
    give_up(refused_ == endpoints_.size() ? ec::refused : ec::node_unreachable, last_problem_);
    return;
  }
  const auto left = deadline_.expiry() - std::chrono::steady_clock::now();
  const auto addresses = static_cast<std::int64_t>(endpoints_.size() - next_);
  const tcp::endpoint endpoint = endpoints_[next_++];
  socket_ = std::make_unique<HttpSocket>(tcp::socket{executor_->context()});
  if (addresses > 1) {
    slice_.expires_after(left / addresses);
    slice_.async_wait([self = shared_from_this(), attempt = next_](const error_code& cancelled) {
      if (!cancelled && self->next_ == attempt && self->socket_) {
        self->socket_->close();  // the connect below fails
      }
    });
  }
  socket_->socket().async_connect(endpoint, [self = shared_from_this()](const error_code& failure) {
    self->slice_.cancel();
    if (self->done_) {
      self->connected(failure);
    }
  });
}

void Dialer::connected(const error_code& failure) {
  error_code ignored;
  if (!failure &&
      socket_->socket().local_endpoint(ignored) == socket_->socket().remote_endpoint(ignored)) {
    // TCP's simultaneous open: dialling a free port of this host may connect a socket to itself.
    last_problem_ = "Connection refused";
    ++refused_;
    connect_next();
    return;
  }
  if (failure == asio::error::connection_refused) {
    ++refused_;
  }
  if (failure) {
    last_problem_ =
        to_text(endpoints_[next_ - 1]) + ": " +
        (failure == asio::error::operation_aborted ? std::string{"no answer"} : failure.message());
    connect_next();
    return;
  }
  socket_->socket().set_option(tcp::no_delay(true), ignored);
  if (request_.tls) {
    handshake();
  } else {
    send_request();
  }
}

void Dialer::handshake() {
  stage_ = "waiting for the TLS handshake";
  socket_->async_handshake(*request_.tls, beast::role_type::client, where_.host,
                           [self = shared_from_this()](const error_code& failure) {
                             if (!self->done_) {
                               return;
                             }
                             if (failure) {
                               self->tls_failed(failure, "TLS handshake failed");
                             } else {
                               self->send_request();
                             }
                           });
}

void Dialer::send_request() {
  stage_ = "waiting for the answer to the upgrade";
  hello_.method(http::verb::get);
  hello_.target(beast::string_view{peer_path.data(), peer_path.size()});
  hello_.version(11);
  hello_.set(http::field::host, request_.address);
  hello_.set(http::field::upgrade, beast::string_view{peer_protocol.data(), peer_protocol.size()});
  hello_.set(http::field::connection, "Upgrade");
  hello_.set("Troupe-Node", to_string(request_.node));
  hello_.set("Troupe-Cluster", request_.cluster);
  hello_.set("Troupe-Purpose", request_.purpose == StreamPurpose::link ? "link" : "heartbeat");
  http::async_write(*socket_, hello_,
                    [self = shared_from_this()](const error_code& failure, std::size_t) {
                      // With TLS 1.3 the peer's refusal of our certificate arrives after our
                      // handshake: it is there to be read even when the write has failed.
                      if (!self->done_) {
                        return;
                      }
                      if (failure && !self->socket_->encrypted()) {
                        self->give_up(ec::node_unreachable, failure.message());
                      } else {
                        self->read_answer();
                      }
                    });
}

void Dialer::read_answer() {
  answer_.emplace();
  answer_->header_limit(static_cast<std::uint32_t>(max_answer));
  answer_->body_limit(max_answer);
  http::async_read_header(
      *socket_, buffer_, *answer_,
      [self = shared_from_this()](const error_code& failure, std::size_t) {
        if (!self->done_) {
          return;
        }
        if (failure) {
          self->tls_failed(failure, "no answer to the upgrade");
          return;
        }
        if (self->answer_->get().result() == http::status::switching_protocols) {
          self->answered();
          return;
        }
        http::async_read(*self->socket_, self->buffer_, *self->answer_,
                         [self](const error_code&, std::size_t) {
                           if (self->done_) {
                             self->answered();
                           }
                         });
      });
}

void Dialer::answered() {
  auto& answer = answer_->get();
  if (answer.result() != http::status::switching_protocols) {
    const auto status = answer.result_int();
    const std::string reason = one_line(answer.body());
    const bool final = status >= 400 && status < 500;
    give_up(final ? ec::handshake_refused : ec::node_unreachable,
            "the peer refused: " + (reason.empty() ? "HTTP " + std::to_string(status) : reason));
    return;
  }
  const auto id = answer["Troupe-Node"];
  const auto cluster = answer["Troupe-Cluster"];
  const auto node = NodeId::parse(std::string_view{id.data(), id.size()});
  if (!node || !*node ||
      !beast::iequals(answer[http::field::upgrade],
                      beast::string_view{peer_protocol.data(), peer_protocol.size()})) {
    give_up(ec::malformed, "the peer's answer to the upgrade is not that of a node");
    return;
  }
  if (cluster != request_.cluster) {
    give_up(ec::handshake_refused, "the dialling node belongs to cluster '" + request_.cluster +
                                       "', the dialled one to '" +
                                       one_line(std::string{cluster.data(), cluster.size()}) + "'");
    return;
  }
  Dialled result;
  result.peer = *node;
  const auto early = buffer_.data();
  result.socket = socket_->detach();
  result.socket.received.assign(static_cast<const char*>(early.data()), early.size());
  socket_.reset();
  finish(std::move(result));
}

void Dialer::tls_failed(const error_code& failure, const char* during) {
  if (failure.category() == asio::error::get_ssl_category()) {
    const auto code = static_cast<unsigned long>(failure.value());
    give_up(ec::unauthorized,
            std::string{during} + ": " + describe_handshake_failure(code, socket_->refusal()));
    return;
  }
  const bool cut = failure == asio::error::eof || failure == asio::error::connection_reset ||
                   failure == http::error::end_of_stream ||
                   failure == http::error::partial_message ||
                   failure == asio::ssl::error::stream_truncated;
  give_up(
      cut ? ec::node_unreachable : ec::malformed,
      std::string{during} + ": " + (cut ? "the peer closed the connection" : failure.message()));
}

void Dialer::give_up(ec code, const std::string& what) {
  if (done_ && (code == ec::handshake_refused || code == ec::unauthorized)) {
    // The caller says it where people look, once.
    spdlog::debug("dialling {}: {}", request_.address, what);
  }
  finish(fail(code, "dialling " + request_.address + ": " + what));
}

void Dialer::finish(expected<Dialled> result) {
  const auto done = std::exchange(done_, nullptr);
  deadline_.cancel();
  slice_.cancel();
  executor_->remove_resident(this);
  if (socket_) {
    socket_->close();
  }
  if (done) {
    done(std::move(result));
  }
}

}  // namespace

void dial_peer(std::shared_ptr<AsioExecutor> executor, DialRequest request,
               std::function<void(expected<Dialled>)> done) {
  auto dialer = std::make_shared<Dialer>(executor, std::move(request), std::move(done));
  executor->post([dialer = std::move(dialer)] { dialer->start(); });
}

}  // namespace troupe::net
