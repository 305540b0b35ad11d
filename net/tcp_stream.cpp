#include "net/tcp_stream.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <openssl/ssl.h>

#include "net/tls_codec.hpp"

namespace troupe::net {

namespace asio = boost::asio;
using boost::system::error_code;

DetachedSocket::DetachedSocket(DetachedSocket&& other) noexcept { *this = std::move(other); }

DetachedSocket& DetachedSocket::operator=(DetachedSocket&& other) noexcept {
  std::swap(fd, other.fd);
  std::swap(ipv6, other.ipv6);
  std::swap(ssl, other.ssl);
  received.swap(other.received);
  received_cipher.swap(other.received_cipher);
  peer_address.swap(other.peer_address);
  return *this;
}

DetachedSocket::~DetachedSocket() {
  if (ssl != nullptr) {
    SSL_free(ssl);
  }
  if (fd >= 0) {
    ::close(fd);
  }
}

namespace {

/// A closed stream reads and drops at most this much while it waits for the peer to notice.
constexpr std::size_t linger_bytes = std::size_t{4} << 20U;
constexpr std::size_t max_pieces = 64;

class TcpStream final : public Stream,
                        public AsioExecutor::Resident,
                        public std::enable_shared_from_this<TcpStream> {
 public:
  TcpStream(std::shared_ptr<AsioExecutor> executor, DetachedSocket socket,
            const TcpStreamOptions& options);
  ~TcpStream() override;
  void enroll();

  void start(std::shared_ptr<StreamSink> sink) override;
  std::size_t write(std::span<const ConstBuffer> buffers) override;
  void close(error reason) override;
  std::string peer_address() const override { return peer_address_; }
  bool encrypted() const noexcept override { return static_cast<bool>(tls_); }
  void abort(const error& reason) override;

 private:
  enum class Outcome { bytes, again, ended };
  struct Received {
    Outcome outcome = Outcome::again;
    std::size_t count = 0;
    bool drained = false;  ///< the socket has nothing more for now
  };

  void set_sink(std::shared_ptr<StreamSink> sink);
  void wait_readable();
  void read_turn();
  Received receive(MutableBuffer window);
  Received receive_plain(MutableBuffer window);
  Received receive_tls(MutableBuffer window);
  std::size_t write_plain(std::span<const ConstBuffer> buffers);
  void request_writable();
  void wait_writable();
  void write_ready();
  bool begin_close(error reason);
  void close_by_peer(ec code, const std::string& what);
  void finish();
  void linger_turn();
  void release_socket();

  const std::shared_ptr<AsioExecutor> executor_;
  const TcpStreamOptions options_;
  asio::ip::tcp::socket socket_;  // loop thread, except for its descriptor
  std::string peer_address_;

  // Loop thread only.
  std::shared_ptr<StreamSink> sink_;
  std::string received_;
  bool reading_ = false;
  bool finished_ = false;
  bool by_peer_ = false;
  bool aborted_ = false;
  bool write_shut_ = false;
  TimerId linger_timer_ = 0;
  std::size_t linger_left_ = linger_bytes;

  std::atomic<bool> closing_{false};  // written under the mutex

  std::mutex mutex_;  // guards what follows, and the use of fd_ and tls_ for writing
  int fd_ = -1;
  std::unique_ptr<TlsCodec> tls_;
  bool want_writable_ = false;  // the last write was short
  bool write_armed_ = false;    // a wait for writability is under way
  error write_failure_;         // plaintext only: the socket takes nothing any more
  error reason_;
};

TcpStream::TcpStream(std::shared_ptr<AsioExecutor> executor, DetachedSocket socket,
                     const TcpStreamOptions& options)
    : executor_(std::move(executor)),
      options_(options),
      socket_(executor_->context()),
      peer_address_(socket.peer_address),
      received_(std::move(socket.received)) {
  error_code failure;
  socket_.assign(socket.ipv6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4(), socket.fd, failure);
  if (failure) {
    closing_ = true;
    reason_ = error{ec::system_error,
                    "cannot watch the socket of " + peer_address_ + ": " + failure.message()};
    return;  // `socket` closes the descriptor
  }
  fd_ = std::exchange(socket.fd, -1);
  socket_.non_blocking(true, failure);
  socket_.set_option(asio::ip::tcp::no_delay(true), failure);
  const int unsent = static_cast<int>(options_.unsent_limit);
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
  if (socket.ssl != nullptr) {
    tls_ = std::make_unique<TlsCodec>(fd_, std::exchange(socket.ssl, nullptr),
                                      std::move(socket.received_cipher));
  }
}

TcpStream::~TcpStream() { executor_->remove_resident(this); }

void TcpStream::enroll() {
  if (!executor_->add_resident(this, weak_from_this())) {
    begin_close(error{ec::closed, "this node is shutting down"});
  }
}

void TcpStream::start(std::shared_ptr<StreamSink> sink) {
  if (executor_->on_thread()) {
    set_sink(std::move(sink));
  } else {
    executor_->post([self = shared_from_this(), sink = std::move(sink)]() mutable {
      self->set_sink(std::move(sink));
    });
  }
}

void TcpStream::set_sink(std::shared_ptr<StreamSink> sink) {
  sink_ = std::move(sink);
  // Also when closing: a stream that ended before its start tells so.
  if (!reading_ || finished_) {
    reading_ = true;
    executor_->post([self = shared_from_this()] {
      if (self->closing_) {
        self->finish();
      } else {
        self->read_turn();
      }
    });
  }
}

void TcpStream::wait_readable() {
  socket_.async_wait(asio::ip::tcp::socket::wait_read,
                     [self = shared_from_this()](const error_code& failure) {
                       if (!failure) {
                         self->read_turn();
                       }
                     });
}

void TcpStream::read_turn() {
  std::size_t budget = options_.read_budget;
  while (!closing_ && sink_) {
    if (budget == 0) {
      executor_->post([self = shared_from_this()] { self->read_turn(); });
      return;
    }
    const auto sink = sink_;  // a handover must not destroy the sink that is running
    const Received got = receive(sink->read_window());
    if (got.outcome == Outcome::ended) {
      return;
    }
    if (got.outcome == Outcome::bytes) {
      sink->on_bytes(got.count);
      budget -= std::min(budget, got.count);
    }
    if (got.drained) {
      if (!closing_) {
        wait_readable();
      }
      return;
    }
  }
}

TcpStream::Received TcpStream::receive(MutableBuffer window) {
  if (!received_.empty()) {
    const std::size_t count = std::min(window.size(), received_.size());
    std::memcpy(window.data(), received_.data(), count);
    received_.erase(0, count);
    return {Outcome::bytes, count, false};
  }
  return tls_ ? receive_tls(window) : receive_plain(window);
}

TcpStream::Received TcpStream::receive_plain(MutableBuffer window) {
  for (;;) {
    const ssize_t got = ::recv(fd_, window.data(), window.size(), MSG_DONTWAIT);
    if (got > 0) {
      const auto count = static_cast<std::size_t>(got);
      return {Outcome::bytes, count, count < window.size()};
    }
    if (got == 0) {
      close_by_peer(ec::closed, "the peer closed the connection");
      return {Outcome::ended, 0, true};
    }
    if (errno == EAGAIN) {
      return {Outcome::again, 0, true};
    }
    if (errno != EINTR) {
      close_by_peer(ec::node_unreachable, std::strerror(errno));
      return {Outcome::ended, 0, true};
    }
  }
}

TcpStream::Received TcpStream::receive_tls(MutableBuffer window) {
  std::unique_lock lock(mutex_);
  const TlsCodec::ReadResult got = tls_->read(window);
  // Reading may make OpenSSL answer (key update, alert).
  if (tls_->pending() > 0 && tls_->flush() && tls_->pending() > 0 && !write_armed_) {
    write_armed_ = true;
    wait_writable();
  }
  const error failure = got.status == TlsCodec::Status::failed ? tls_->failure() : error{};
  lock.unlock();
  switch (got.status) {
    case TlsCodec::Status::ok:
      return {Outcome::bytes, got.count, false};
    case TlsCodec::Status::again:
      return {Outcome::again, 0, true};
    case TlsCodec::Status::ended:
      close_by_peer(ec::closed, "the peer closed the connection");
      break;
    case TlsCodec::Status::failed:
      close_by_peer(failure.code(), failure.text());
      break;
  }
  return {Outcome::ended, 0, true};
}

std::size_t TcpStream::write(std::span<const ConstBuffer> buffers) {
  std::size_t total = 0;
  for (const ConstBuffer& buffer : buffers) {
    total += buffer.size();
  }
  std::unique_lock lock(mutex_);
  if (closing_ || write_failure_) {
    return total;
  }
  const std::size_t taken = tls_ ? tls_->write(buffers) : write_plain(buffers);
  const error& failure = tls_ ? tls_->write_failure() : write_failure_;
  if (failure) {
    const error reason{failure.code(), "connection to " + peer_address_ + ": " + failure.text()};
    lock.unlock();
    // A connection that the peer has closed ends when everything it sent has been read: its last
    // words may say why. Other failures would go unnoticed by the reading side.
    if (reason.code() != ec::node_unreachable) {
      close(reason);
    }
    return total;
  }
  want_writable_ = taken < total;
  const bool arm = (want_writable_ || (tls_ && tls_->pending() > 0)) && !write_armed_;
  write_armed_ = write_armed_ || arm;
  lock.unlock();
  if (arm) {
    request_writable();
  }
  return taken;
}

std::size_t TcpStream::write_plain(std::span<const ConstBuffer> buffers) {
  std::array<iovec, max_pieces> pieces;
  std::size_t taken = 0;
  std::size_t index = 0;
  std::size_t offset = 0;
  for (;;) {
    std::size_t count = 0;
    std::size_t offered = 0;
    for (std::size_t i = index, skip = offset; i < buffers.size() && count < max_pieces;
         ++i, skip = 0) {
      const ConstBuffer part = buffers[i].subspan(skip);
      if (!part.empty()) {
        // sendmsg does not write through iov_base; the type just cannot say so.
        pieces[count++] = {const_cast<std::byte*>(part.data()), part.size()};
        offered += part.size();
      }
    }
    if (offered == 0) {
      return taken;
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno != EAGAIN) {
        write_failure_ = send_failure(errno);
      }
      return taken;
    }
    taken += static_cast<std::size_t>(sent);
    if (static_cast<std::size_t>(sent) < offered) {
      return taken;
    }
    for (auto left = static_cast<std::size_t>(sent); index < buffers.size();) {
      const std::size_t here = std::min(left, buffers[index].size() - offset);
      offset += here;
      left -= here;
      if (offset < buffers[index].size()) {
        break;
      }
      ++index;
      offset = 0;
    }
  }
}

void TcpStream::request_writable() {
  if (executor_->on_thread()) {
    wait_writable();
  } else {
    executor_->post([self = shared_from_this()] { self->wait_writable(); });
  }
}

void TcpStream::wait_writable() {
  if (!socket_.is_open()) {
    return;
  }
  socket_.async_wait(asio::ip::tcp::socket::wait_write,
                     [self = shared_from_this()](const error_code& failure) {
                       if (!failure) {
                         self->write_ready();
                       }
                     });
}

void TcpStream::write_ready() {
  bool notify = false;
  {
    const std::lock_guard lock(mutex_);
    write_armed_ = false;
    if (tls_ && tls_->pending() > 0 && tls_->flush() && tls_->pending() > 0) {
      write_armed_ = true;
      wait_writable();
      return;
    }
    notify = std::exchange(want_writable_, false);
  }
  if (finished_) {
    linger_turn();
  } else if (notify && !closing_ && sink_) {
    const auto sink = sink_;
    sink->on_writable();
  }
}

bool TcpStream::begin_close(error reason) {
  const std::lock_guard lock(mutex_);
  if (closing_) {
    return false;
  }
  reason_ = std::move(reason);
  closing_ = true;
  return true;
}

void TcpStream::close(error reason) {
  if (begin_close(std::move(reason))) {
    executor_->post([self = shared_from_this()] { self->finish(); });
  }
}

void TcpStream::close_by_peer(ec code, const std::string& what) {
  by_peer_ = true;
  if (begin_close(error{code, "connection to " + peer_address_ + ": " + what})) {
    finish();
  }
}

void TcpStream::abort(const error& reason) {
  begin_close(reason);
  aborted_ = true;
  finish();
  release_socket();
}

void TcpStream::finish() {
  const auto self = shared_from_this();
  const bool first = !std::exchange(finished_, true);
  if (first) {
    const std::lock_guard lock(mutex_);
    if (tls_ && !by_peer_) {
      tls_->shutdown();
    }
  }
  if (const auto sink = std::move(sink_)) {
    sink_.reset();
    sink->on_closed(reason_);
  }
  if (!first) {
    return;
  }
  if (by_peer_ || aborted_ || !socket_.is_open()) {
    release_socket();
    return;
  }
  // A plain close with unread input would make the kernel drop what we sent last: say goodbye, then
  // read and drop until the peer has noticed.
  socket_.cancel();
  {
    const std::lock_guard lock(mutex_);
    write_armed_ = false;
  }
  linger_timer_ = executor_->schedule(options_.linger, [self] { self->release_socket(); });
  linger_turn();
}

void TcpStream::linger_turn() {
  if (!socket_.is_open()) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (tls_ && tls_->pending() > 0 && tls_->flush() && tls_->pending() > 0) {
      if (!write_armed_) {
        write_armed_ = true;
        wait_writable();
      }
    } else if (!std::exchange(write_shut_, true)) {
      ::shutdown(fd_, SHUT_WR);
    }
  }
  std::array<char, 16384> waste;
  for (;;) {
    const ssize_t got = ::recv(fd_, waste.data(), waste.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      break;
    }
    if (got <= 0 || static_cast<std::size_t>(got) > linger_left_) {
      release_socket();
      return;
    }
    linger_left_ -= static_cast<std::size_t>(got);
  }
  socket_.async_wait(asio::ip::tcp::socket::wait_read,
                     [self = shared_from_this()](const error_code& failure) {
                       if (!failure) {
                         self->linger_turn();
                       }
                     });
}

void TcpStream::release_socket() {
  executor_->remove_resident(this);
  executor_->cancel(linger_timer_);
  const std::lock_guard lock(mutex_);
  fd_ = -1;
  error_code ignored;
  socket_.close(ignored);
}

}  // namespace

std::shared_ptr<Stream> make_tcp_stream(std::shared_ptr<AsioExecutor> executor,
                                        DetachedSocket socket, const TcpStreamOptions& options) {
  auto stream = std::make_shared<TcpStream>(std::move(executor), std::move(socket), options);
  stream->enroll();
  return stream;
}

}  // namespace troupe::net
