#include "net/endpoint.hpp"

#include <algorithm>
#include <charconv>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <spdlog/spdlog.h>

#include "net/endpoint_core.hpp"
#include "net/http_session.hpp"
#include "net/http_socket.hpp"

namespace troupe::net {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

std::string to_text(const tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  const std::string port = std::to_string(endpoint.port());
  return endpoint.address().is_v6() ? "[" + host + "]:" + port : host + ":" + port;
}

expected<HostPort> parse_address(std::string_view address) {
  const auto refuse = [&](const char* why) {
    return fail(ec::invalid_argument,
                "'" + std::string{address.substr(0, 300)} +
                    "' is not an address (\"host:port\" or \"[v6]:port\"): " + why);
  };
  const auto colon = address.rfind(':');
  if (colon == std::string_view::npos || address.size() > 300) {
    return refuse("no port");
  }
  std::string_view host = address.substr(0, colon);
  const std::string_view digits = address.substr(colon + 1);
  HostPort result;
  const auto [end, problem] =
      std::from_chars(digits.data(), digits.data() + digits.size(), result.port);
  if (digits.empty() || problem != std::errc{} || end != digits.data() + digits.size()) {
    return refuse("the port must be a number from 0 to 65535");
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return refuse("an IPv6 address needs brackets");
  }
  if (host.empty() || host.find_first_of(" \t\r\n/@") != std::string_view::npos) {
    return refuse("the host is missing or malformed");
  }
  result.host = host;
  return result;
}

namespace {

expected<std::vector<tcp::endpoint>> resolve(const std::string& address) {
  const auto parsed = parse_address(address);
  if (!parsed) {
    return fail(parsed.error());
  }
  asio::io_context context;
  tcp::resolver resolver(context);
  error_code failure;
  const auto found =
      resolver.resolve(parsed->host, std::to_string(parsed->port), tcp::resolver::passive, failure);
  if (failure || found.empty()) {
    return fail(ec::invalid_argument,
                "cannot look up '" + parsed->host + "': " + failure.message());
  }
  return std::vector<tcp::endpoint>(found.begin(), found.end());
}

expected<void> check_endpoints(const std::string& address, const std::vector<tcp::endpoint>& found,
                               bool tls, bool insecure) {
  if (tls || insecure) {
    return {};
  }
  for (const auto& endpoint : found) {
    asio::ip::address host = endpoint.address();
    if (host.is_v6() && host.to_v6().is_v4_mapped()) {
      host = asio::ip::make_address_v4(asio::ip::v4_mapped, host.to_v6());
    }
    if (!host.is_loopback()) {
      return fail(ec::invalid_argument,
                  "refusing to listen on '" + address + "' (" + host.to_string() +
                      ") without TLS: anybody on the network could join or give commands. Make "
                      "certificates with `troupe certs`, listen on 127.0.0.1, or allow it with "
                      "--insecure");
    }
  }
  return {};
}

}  // namespace

expected<void> check_listen_policy(const std::string& address, bool tls, bool insecure) {
  const auto found = resolve(address);
  if (!found) {
    return fail(found.error());
  }
  return check_endpoints(address, *found, tls, insecure);
}

// ---- what the connections share ---------------------------------------------------------------

void EndpointCore::add(const std::string& method, const std::string& path, Route route) {
  const std::lock_guard lock(mutex);
  if (path.ends_with("/*")) {
    prefixes[path.substr(0, path.size() - 1)][method] = std::move(route);
  } else {
    exact[path][method] = std::move(route);
  }
}

EndpointCore::Found EndpointCore::find(std::string_view method, std::string_view path) const {
  const std::lock_guard lock(mutex);
  const std::map<std::string, Route>* methods = nullptr;
  if (const auto found = exact.find(path); found != exact.end()) {
    methods = &found->second;
  } else {
    std::size_t longest = 0;
    for (const auto& [prefix, candidate] : prefixes) {
      if (path.starts_with(prefix) && prefix.size() > longest) {
        methods = &candidate;
        longest = prefix.size();
      }
    }
  }
  Found result;
  if (methods == nullptr) {
    return result;
  }
  result.path_exists = true;
  const auto wanted = methods->find(std::string{method == "HEAD" ? "GET" : method});
  if (wanted != methods->end()) {
    result.route = wanted->second;
    return result;
  }
  for (const auto& [name, route] : *methods) {
    result.allowed += (result.allowed.empty() ? "" : ", ") + name;
    result.allowed += name == "GET" ? ", HEAD" : "";
  }
  return result;
}

WebSocketHandler EndpointCore::find_websocket(std::string_view path) const {
  const std::lock_guard lock(mutex);
  const auto found = websockets.find(path);
  return found == websockets.end() ? WebSocketHandler{} : found->second;
}

std::function<void(PeerArrival)> EndpointCore::peer_handler() const {
  const std::lock_guard lock(mutex);
  return on_peer;
}

void EndpointCore::log_refusal(const std::string& text) {
  constexpr unsigned per_second = 10;
  const TimePoint now = executor->now();
  if (now - log_second_ > std::chrono::seconds{1}) {
    if (unlogged_ > 0) {
      spdlog::warn("{} more refusals were not logged", unlogged_);
    }
    log_second_ = now;
    logged_ = 0;
    unlogged_ = 0;
  }
  if (logged_ < per_second) {
    ++logged_;
    spdlog::warn("{}", text);
  } else {
    ++unlogged_;
  }
}

// ---- the listener -----------------------------------------------------------------------------

namespace {

class Listener final : public AsioExecutor::Resident,
                       public std::enable_shared_from_this<Listener> {
 public:
  explicit Listener(std::shared_ptr<EndpointCore> core)
      : core_(std::move(core)),
        acceptor_(core_->executor->context()),
        pause_(core_->executor->context()) {}
  ~Listener() override { core_->executor->remove_resident(this); }

  expected<void> bind(const tcp::endpoint& endpoint) {
    error_code failure;
    acceptor_.open(endpoint.protocol(), failure);
    if (!failure) {
      acceptor_.set_option(tcp::acceptor::reuse_address(true), failure);
    }
    if (!failure) {
      acceptor_.bind(endpoint, failure);
    }
    if (!failure) {
      acceptor_.listen(asio::socket_base::max_listen_connections, failure);
    }
    if (failure) {
      return fail(ec::system_error,
                  "cannot listen on " + to_text(endpoint) + ": " + failure.message());
    }
    return {};
  }

  tcp::endpoint local() const {
    error_code ignored;
    return acceptor_.local_endpoint(ignored);
  }

  void accept() {
    acceptor_.async_accept(
        [self = shared_from_this()](const error_code& failure, tcp::socket socket) {
          self->accepted(failure, std::move(socket));
        });
  }

  void abort(const error&) override {
    error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
  }

 private:
  void accepted(const error_code& failure, tcp::socket socket) {
    if (!acceptor_.is_open()) {
      return;
    }
    if (failure == asio::error::no_descriptors || failure == asio::error::no_buffer_space ||
        failure == asio::error::no_memory || failure.value() == ENFILE) {
      // The waiting connection stays in the backlog and would wake us again at once.
      core_->log_refusal("cannot accept connections: " + failure.message());
      pause_.expires_after(std::chrono::milliseconds{50});
      pause_.async_wait([self = shared_from_this()](const error_code& cancelled) {
        if (!cancelled) {
          self->accept();
        }
      });
      return;
    }
    if (!failure) {
      ++core_->counters.accepted;
      if (core_->counters.unauthenticated >= core_->config.limits.unauthenticated) {
        ++core_->counters.turned_away;
        core_->log_refusal(
            "too many connections that have not identified themselves: turning "
            "new ones away");
      } else {
        serve_http(core_, std::move(socket));
      }
    }
    accept();
  }

  std::shared_ptr<EndpointCore> core_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
};

}  // namespace

struct Endpoint::Impl {
  std::shared_ptr<EndpointCore> core = std::make_shared<EndpointCore>();
  mutable std::mutex mutex;
  std::shared_ptr<Listener> listener;
  tcp::endpoint bound;
};

Endpoint::Endpoint(std::shared_ptr<AsioExecutor> executor, EndpointConfig config)
    : impl_(std::make_shared<Impl>()) {
  impl_->core->executor = std::move(executor);
  impl_->core->config = std::move(config);
  add_route("GET", "/livez", [](const HttpRequest&) {
    HttpResponse alive;
    alive.body = "ok";
    return alive;
  });
}

Endpoint::~Endpoint() { stop_listening(); }

expected<void> Endpoint::listen(const std::string& address) {
  const auto found = resolve(address);
  if (!found) {
    return fail(found.error());
  }
  const auto& config = impl_->core->config;
  const auto allowed = check_endpoints(address, *found, config.tls != nullptr, config.insecure);
  if (!allowed) {
    return allowed;
  }
  const std::lock_guard lock(impl_->mutex);
  if (impl_->listener) {
    return fail(ec::conflict, "already listening on " + to_text(impl_->bound));
  }
  auto listener = std::make_shared<Listener>(impl_->core);
  if (const auto bound = listener->bind(found->front()); !bound) {
    return bound;
  }
  impl_->bound = listener->local();
  impl_->listener = listener;
  impl_->core->executor->post([listener, core = impl_->core] {
    if (core->executor->add_resident(listener.get(), listener)) {
      listener->accept();
    }
  });
  return {};
}

void Endpoint::stop_listening() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->listener) {
    impl_->core->executor->post([listener = std::move(impl_->listener)] { listener->abort({}); });
    impl_->listener.reset();
  }
}

std::string Endpoint::address() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->bound.port() == 0 ? std::string{} : to_text(impl_->bound);
}

std::uint16_t Endpoint::port() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->bound.port();
}

void Endpoint::on_peer(std::function<void(PeerArrival)> handler) {
  const std::lock_guard lock(impl_->core->mutex);
  impl_->core->on_peer = std::move(handler);
}

void Endpoint::add_route(const std::string& method, const std::string& path, HttpHandler handler) {
  impl_->core->add(method, path, {std::move(handler), {}});
}

void Endpoint::add_async_route(const std::string& method, const std::string& path,
                               AsyncHttpHandler handler) {
  impl_->core->add(method, path, {{}, std::move(handler)});
}

void Endpoint::on_websocket(const std::string& path, WebSocketHandler handler) {
  const std::lock_guard lock(impl_->core->mutex);
  impl_->core->websockets[path] = std::move(handler);
}

EndpointCounters Endpoint::counters() const {
  const auto& from = impl_->core->counters;
  EndpointCounters out;
  out.accepted = from.accepted;
  out.turned_away = from.turned_away;
  out.requests = from.requests;
  out.bad_requests = from.bad_requests;
  out.peers = from.peers;
  out.peers_refused = from.peers_refused;
  out.open_unauthenticated = from.unauthenticated;
  out.open_websockets = from.websockets;
  return out;
}

}  // namespace troupe::net
