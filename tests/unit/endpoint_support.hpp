// Why: the endpoint, stream and TLS tests share nodes on loopback, sinks that record, and bounded
// waits.
// Thread-safety: stated per class.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "net/tcp_transport.hpp"

namespace troupe::net::test {

using namespace std::chrono_literals;

/// Waits until `condition` holds; false after `limit`.
inline bool eventually(const std::function<bool()>& condition, Duration limit = 20s) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

/// Records all bytes; any thread may ask.
class RecordingSink : public StreamSink {
 public:
  MutableBuffer read_window() override { return {window_.data(), window_.size()}; }
  void on_bytes(std::size_t count) override {
    const std::lock_guard lock(mutex_);
    received_.append(reinterpret_cast<const char*>(window_.data()), count);
  }
  void on_writable() override { ++writable; }
  void on_closed(const error& reason) override {
    const std::lock_guard lock(mutex_);
    reason_ = reason;
    ++closed;
  }

  std::string received() {
    const std::lock_guard lock(mutex_);
    return received_;
  }
  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return received_.size();
  }
  error reason() {
    const std::lock_guard lock(mutex_);
    return reason_;
  }

  std::atomic<int> writable{0};
  std::atomic<int> closed{0};

 private:
  std::vector<std::byte> window_ = std::vector<std::byte>(std::size_t{64} << 10U);
  std::mutex mutex_;
  std::string received_;
  error reason_;
};

/// Sends back what comes in; loop thread only.
class EchoSink : public StreamSink {
 public:
  explicit EchoSink(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  MutableBuffer read_window() override { return {window_.data(), window_.size()}; }
  void on_bytes(std::size_t count) override {
    pending_.append(reinterpret_cast<const char*>(window_.data()), count);
    flush();
  }
  void on_writable() override { flush(); }
  void on_closed(const error&) override { stream_.reset(); }

 private:
  void flush() {
    if (stream_) {
      const ConstBuffer all = std::as_bytes(std::span{pending_});
      pending_.erase(0, stream_->write({&all, 1}));
    }
  }
  std::shared_ptr<Stream> stream_;
  std::vector<std::byte> window_ = std::vector<std::byte>(16384);
  std::string pending_;
};

inline std::size_t write_text(Stream& stream, std::string_view text) {
  const ConstBuffer all = std::as_bytes(std::span{text.data(), text.size()});
  return stream.write({&all, 1});
}

/// Where the streams that a node accepts arrive. Any thread.
class Arrivals {
 public:
  void add(OpenStream stream) {
    const std::lock_guard lock(mutex_);
    streams_.push_back(std::move(stream));
  }
  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return streams_.size();
  }
  OpenStream take() {
    OpenStream out;
    eventually([&] { return size() > 0; });
    const std::lock_guard lock(mutex_);
    if (!streams_.empty()) {
      out = std::move(streams_.front());
      streams_.erase(streams_.begin());
    }
    return out;
  }

 private:
  std::mutex mutex_;
  std::vector<OpenStream> streams_;
};

struct NodeOptions {
  std::uint64_t id = 1;
  std::string cluster = "test";
  std::shared_ptr<const TlsContext> tls = nullptr;
  HttpLimits limits = {};
  TcpStreamOptions stream = {};
  std::string listen = "127.0.0.1:0";
};

/// A transport on loopback that keeps what it accepts (or echoes on it).
struct TestNode {
  explicit TestNode(NodeOptions options = {}, bool echo = false)
      : arrivals(std::make_shared<Arrivals>()), transport(config(options)) {
    transport.on_accept([keep = arrivals, echo](OpenStream stream) {
      if (echo) {
        auto moved = stream.stream;
        moved->start(std::make_shared<EchoSink>(moved));
      } else {
        keep->add(std::move(stream));
      }
    });
    const auto listening = transport.listen(options.listen);
    if (!listening) {
      throw std::runtime_error(listening.error().text());
    }
  }

  static TcpTransportConfig config(const NodeOptions& options) {
    TcpTransportConfig out;
    out.endpoint.node = NodeId{0xABCD, options.id};
    out.endpoint.cluster = options.cluster;
    out.endpoint.tls = options.tls;
    out.endpoint.limits = options.limits;
    out.stream = options.stream;
    return out;
  }

  std::string address() const { return const_cast<TcpTransport&>(transport).endpoint().address(); }

  expected<OpenStream> dial(const std::string& address, StreamPurpose purpose = StreamPurpose::link,
                            Duration timeout = 10s) {
    auto promise = std::make_shared<std::promise<expected<OpenStream>>>();
    auto future = promise->get_future();
    transport.dial(address, purpose, timeout, [promise](expected<OpenStream> result) {
      promise->set_value(std::move(result));
    });
    if (future.wait_for(timeout + 10s) != std::future_status::ready) {
      return fail(ec::timeout, "the dial handler was not called");
    }
    return future.get();
  }

  std::shared_ptr<Arrivals> arrivals;
  TcpTransport transport;
};

/// A bare TCP connection to a port of this host.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(port);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0;
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }
  int fd() const { return fd_; }

  /// False when the other side is gone.
  bool send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        return false;
      }
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  /// Reads until `end` has been seen, the other side closes, or the time is over.
  std::string read_until(std::string_view end, Duration limit = 10s) {
    std::string out;
    const auto stop = std::chrono::steady_clock::now() + limit;
    while (out.find(end) == std::string::npos || end.empty()) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          stop - std::chrono::steady_clock::now());
      pollfd waiting{fd_, POLLIN, 0};
      char chunk[4096];
      if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) {
        timed_out = true;
        break;
      }
      const ssize_t got = ::recv(fd_, chunk, sizeof chunk, 0);
      if (got <= 0) {
        ended = true;
        break;
      }
      out.append(chunk, static_cast<std::size_t>(got));
    }
    return out;
  }

  /// Everything until the other side closes.
  std::string read_all(Duration limit = 10s) { return read_until({}, limit); }

  void close() {
    if (fd_ >= 0) {
      ::close(fd_);
      fd_ = -1;
    }
  }

  bool ended = false;
  bool timed_out = false;

 private:
  int fd_ = -1;
  bool connected_ = false;
};

}  // namespace troupe::net::test
