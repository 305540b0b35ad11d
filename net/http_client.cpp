#include "net/http_client.hpp"

#include <netdb.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "net/endpoint.hpp"
#include "net/http_socket.hpp"

namespace troupe::net {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;

namespace {

constexpr std::size_t max_header = std::size_t{64} << 10U;

/// getaddrinfo cannot be cancelled: it gets a thread that is left behind when the time is over.
expected<std::vector<tcp::endpoint>> look_up(const HostPort& where, SteadyClock::time_point end) {
  error_code failure;
  const auto numeric = asio::ip::make_address(where.host, failure);
  if (!failure) {
    return std::vector<tcp::endpoint>{tcp::endpoint{numeric, where.port}};
  }
  struct Found {
    std::mutex mutex;
    std::condition_variable ready;
    bool done = false;
    int code = 0;
    std::vector<tcp::endpoint> endpoints;
  };
  const auto found = std::make_shared<Found>();
  std::thread([found, where] {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_ADDRCONFIG | AI_NUMERICSERV;
    addrinfo* list = nullptr;
    const int code =
        ::getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &list);
    std::vector<tcp::endpoint> endpoints;
    for (addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
      tcp::endpoint endpoint;
      if (entry->ai_addrlen <= endpoint.capacity()) {
        std::memcpy(endpoint.data(), entry->ai_addr, entry->ai_addrlen);
        endpoint.resize(entry->ai_addrlen);
        endpoints.push_back(endpoint);
      }
    }
    if (list != nullptr) {
      ::freeaddrinfo(list);
    }
    const std::lock_guard lock(found->mutex);
    found->code = code;
    found->endpoints = std::move(endpoints);
    found->done = true;
    found->ready.notify_one();
  }).detach();
  std::unique_lock lock(found->mutex);
  if (!found->ready.wait_until(lock, end, [&] { return found->done; })) {
    return fail(ec::timeout, "no answer in time while looking up the name");
  }
  if (found->endpoints.empty()) {
    return fail(ec::node_unreachable,
                "cannot look up '" + where.host +
                    "': " + (found->code != 0 ? ::gai_strerror(found->code) : "no address"));
  }
  return found->endpoints;
}

/// One call. Every step runs the loop until the step or the time is over.
class Client {
 public:
  Client(const HttpCall& call, SteadyClock::time_point end) : call_(call), end_(end) {}

  expected<HttpResult> run(const HostPort& where, const std::vector<tcp::endpoint>& endpoints) {
    if (auto connected = connect(endpoints); !connected) {
      return fail(connected.error());
    }
    if (call_.tls) {
      if (auto secured = handshake(where); !secured) {
        return fail(secured.error());
      }
    }
    if (auto sent = send(); !sent) {
      return fail(sent.error());
    }
    return receive();
  }

 private:
  /// Starts an operation with the handler it is given. False: the time is over first.
  template <class Start>
  bool step(SteadyClock::time_point end, error_code& failure, Start start) {
    std::optional<error_code> result;
    start([&result](const error_code& code, auto&&...) { result = code; });
    io_.restart();
    while (!result && io_.run_one_until(end) > 0) {
    }
    if (!result) {
      // The operation refers to this frame; its end is near once the socket is closed.
      socket_->close();
      io_.restart();
      while (!result && io_.run_one() > 0) {
      }
      return false;
    }
    failure = *result;
    return true;
  }

  static tl::unexpected<error> late(const char* stage) {
    return fail(ec::timeout, std::string{"no answer in time while "} + stage);
  }

  expected<void> connect(const std::vector<tcp::endpoint>& endpoints) {
    std::size_t refused = 0;
    error problem{ec::node_unreachable, "no address"};
    for (std::size_t i = 0; i < endpoints.size(); ++i) {
      const auto now = SteadyClock::now();
      const auto share = (end_ - now) / static_cast<std::int64_t>(endpoints.size() - i);
      socket_ = std::make_unique<HttpSocket>(tcp::socket{io_});
      error_code failure;
      const bool in_time = step(now + share, failure, [&](auto handler) {
        socket_->socket().async_connect(endpoints[i], handler);
      });
      error_code ignored;
      if (in_time && !failure &&
          socket_->socket().local_endpoint(ignored) == socket_->socket().remote_endpoint(ignored)) {
        // TCP's simultaneous open: a free port of this host may connect a socket to itself.
        failure = asio::error::connection_refused;
      }
      if (in_time && !failure) {
        socket_->socket().set_option(tcp::no_delay(true), ignored);
        return {};
      }
      refused += in_time && failure == asio::error::connection_refused ? 1U : 0U;
      problem = in_time
                    ? error{ec::node_unreachable, to_text(endpoints[i]) + ": " + failure.message()}
                    : late("connecting").value();
    }
    if (refused == endpoints.size()) {
      return fail(ec::refused, "connection refused: nothing listens there");
    }
    return fail(problem);
  }

  expected<void> handshake(const HostPort& where) {
    error_code failure;
    if (!step(end_, failure, [&](auto handler) {
          socket_->async_handshake(*call_.tls, beast::role_type::client, where.host, handler);
        })) {
      return late("waiting for the TLS handshake");
    }
    return failure ? broken(failure, "TLS handshake failed") : expected<void>{};
  }

  expected<void> send() {
    http::request<http::string_body> request;
    request.method_string({call_.method.data(), call_.method.size()});
    request.target({call_.target.data(), call_.target.size()});
    request.version(11);
    request.set(http::field::host, call_.address);
    request.set(http::field::connection, "close");
    request.set(http::field::accept, "application/json");
    if (!call_.body.empty()) {
      request.set(http::field::content_type, call_.content_type);
    }
    request.body() = call_.body;
    request.prepare_payload();
    error_code failure;
    if (!step(end_, failure,
              [&](auto handler) { http::async_write(*socket_, request, handler); })) {
      return late("sending the request");
    }
    // The peer may have answered (or, over TLS, refused our certificate) before it read everything: what it
    // said is better than that it hung up.
    return {};
  }

  expected<HttpResult> receive() {
    http::response_parser<http::string_body> parser;
    parser.header_limit(static_cast<std::uint32_t>(max_header));
    parser.body_limit(call_.body_limit);
    parser.skip(call_.method == "HEAD");
    beast::flat_buffer buffer{max_header + (std::size_t{64} << 10U)};
    error_code failure;
    // The header by itself first: Beast 1.74 forgets the limit when the body arrives in the same read.
    if (!step(end_, failure,
              [&](auto handler) { http::async_read_header(*socket_, buffer, parser, handler); })) {
      return late("waiting for the answer");
    }
    if (!failure && !step(end_, failure, [&](auto handler) {
          http::async_read(*socket_, buffer, parser, handler);
        })) {
      return late("reading the answer");
    }
    if (failure == http::error::body_limit || failure == http::error::header_limit ||
        failure == http::error::buffer_overflow) {
      return fail(ec::limit_exceeded,
                  "the answer is larger than " + std::to_string(call_.body_limit >> 20U) + " MiB");
    }
    if (failure) {
      return fail(broken(failure, "no answer").error());
    }
    auto& answer = parser.get();
    HttpResult result;
    result.status = answer.result_int();
    const auto type = answer[http::field::content_type];
    result.content_type.assign(type.data(), type.size());
    result.body = std::move(answer.body());
    return result;
  }

  expected<void> broken(const error_code& failure, const std::string& during) {
    if (failure.category() == asio::error::get_ssl_category()) {
      return fail(ec::unauthorized,
                  during + ": " +
                      describe_handshake_failure(static_cast<unsigned long>(failure.value()),
                                                 socket_->refusal()));
    }
    if (failure == asio::error::eof || failure == asio::error::connection_reset ||
        failure == asio::error::broken_pipe || failure == http::error::end_of_stream ||
        failure == http::error::partial_message || failure == asio::ssl::error::stream_truncated) {
      return fail(ec::node_unreachable, during + ": the other side closed the connection" +
                                            (call_.tls ? "" : "; does it want TLS?"));
    }
    if (failure.category() == http::make_error_code(http::error::bad_version).category()) {
      return fail(ec::malformed,
                  during + ": the other side does not speak HTTP (" + failure.message() + ")");
    }
    return fail(ec::node_unreachable, during + ": " + failure.message());
  }

  const HttpCall& call_;
  const SteadyClock::time_point end_;
  asio::io_context io_{1};
  std::unique_ptr<HttpSocket> socket_;
};

bool fit_for_request(const HttpCall& call) {
  const auto visible = [](char c) { return c > 0x20 && c < 0x7F; };
  return !call.target.empty() && call.target.front() == '/' &&
         std::all_of(call.target.begin(), call.target.end(), visible) && !call.method.empty() &&
         std::all_of(call.method.begin(), call.method.end(),
                     [](char c) { return c >= 'A' && c <= 'Z'; });
}

}  // namespace

expected<HttpResult> http_request(const HttpCall& call) {
  const auto end =
      SteadyClock::now() + std::chrono::duration_cast<SteadyClock::duration>(call.timeout);
  const auto where = parse_address(call.address);
  if (!where) {
    return fail(where.error());
  }
  if (!fit_for_request(call)) {
    return fail(ec::invalid_argument,
                "not fit for an HTTP request: " + call.method + " " + call.target);
  }
  const auto blame = [&](const error& reason) {
    return fail(reason.code(), call.method + " " + call.address + ": " + reason.text());
  };
  const auto endpoints = look_up(*where, end);
  if (!endpoints) {
    return blame(endpoints.error());
  }
  Client client{call, end};
  auto result = client.run(*where, *endpoints);
  return result ? std::move(result) : blame(result.error());
}

std::string percent_encode(std::string_view text) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~';
    if (plain) {
      out += c;
    } else {
      out += '%';
      out += digits[byte >> 4U];
      out += digits[byte & 15U];
    }
  }
  return out;
}

}  // namespace troupe::net
