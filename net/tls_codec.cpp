#include "net/tls_codec.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "net/tls.hpp"

namespace troupe::net {

namespace {

constexpr std::size_t record_size = std::size_t{16} << 10U;
constexpr std::size_t out_limit = std::size_t{128} << 10U;
constexpr std::size_t in_capacity = std::size_t{128} << 10U;

}  // namespace

const bio_method_st* TlsCodec::method() {
  static BIO_METHOD* const instance = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "troupe stream");
    BIO_meth_set_read(made, &TlsCodec::bio_read);
    BIO_meth_set_write(made, &TlsCodec::bio_write);
    BIO_meth_set_ctrl(made, &TlsCodec::bio_ctrl);
    return made;
  }();
  return instance;
}

TlsCodec::TlsCodec(int fd, ssl_st* ssl, std::string received_cipher) : fd_(fd), ssl_(ssl) {
  in_.resize(std::max(in_capacity, received_cipher.size()));
  std::memcpy(in_.data(), received_cipher.data(), received_cipher.size());
  in_end_ = received_cipher.size();
  scratch_ = std::make_unique<std::byte[]>(record_size);
  BIO* bio = BIO_new(method());
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_mode(ssl_, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
}

TlsCodec::~TlsCodec() {
  SSL_free(ssl_);
  ERR_clear_error();
}

int TlsCodec::bio_read(BIO* bio, char* data, int size) {
  auto& self = *static_cast<TlsCodec*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  if (self.in_begin_ == self.in_end_) {
    const ssize_t got = ::recv(self.fd_, self.in_.data(), self.in_.size(), MSG_DONTWAIT);
    if (got <= 0) {
      if (got == 0) {
        self.eof_ = true;
        return 0;
      }
      if (errno == EAGAIN || errno == EINTR) {
        BIO_set_retry_read(bio);
      } else {
        self.read_errno_ = errno;
      }
      return -1;
    }
    self.in_begin_ = 0;
    self.in_end_ = static_cast<std::size_t>(got);
  }
  const std::size_t count = std::min(static_cast<std::size_t>(size), self.in_end_ - self.in_begin_);
  std::memcpy(data, self.in_.data() + self.in_begin_, count);
  self.in_begin_ += count;
  return static_cast<int>(count);
}

int TlsCodec::bio_write(BIO* bio, const char* data, int size) {
  auto& self = *static_cast<TlsCodec*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  if (self.out_sent_ > out_limit) {
    self.out_.erase(self.out_.begin(),
                    self.out_.begin() + static_cast<std::ptrdiff_t>(self.out_sent_));
    self.out_sent_ = 0;
  }
  self.out_.insert(self.out_.end(), data, data + size);
  return size;
}

long TlsCodec::bio_ctrl(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

error send_failure(int code) {
  const bool gone = code == EPIPE || code == ECONNRESET;
  return {gone ? ec::node_unreachable : ec::system_error, std::strerror(code)};
}

TlsCodec::ReadResult TlsCodec::read(MutableBuffer window) {
  if (failure_) {
    return {Status::failed, 0};
  }
  ERR_clear_error();
  std::size_t count = 0;
  const int result = SSL_read_ex(ssl_, window.data(), window.size(), &count);
  if (result == 1) {
    return {Status::ok, count};
  }
  const int reason = SSL_get_error(ssl_, result);
  if (reason == SSL_ERROR_WANT_READ) {
    return {Status::again, 0};
  }
  if (reason == SSL_ERROR_ZERO_RETURN) {
    return {Status::ended, 0};
  }
  if (eof_) {
    failure_ = {ec::node_unreachable, "the connection was cut without a TLS goodbye"};
  } else if (read_errno_ != 0) {
    failure_ = {ec::node_unreachable, std::strerror(read_errno_)};
  } else {
    failure_ = {ec::malformed, describe_tls_error(ERR_peek_error())};
  }
  ERR_clear_error();
  return {Status::failed, 0};
}

bool TlsCodec::seal(const std::byte* data, std::size_t size) {
  ERR_clear_error();
  std::size_t count = 0;
  if (SSL_write_ex(ssl_, data, size, &count) != 1 || count != size) {
    write_failure_ = {ec::system_error,
                      "TLS could not seal a record: " + describe_tls_error(ERR_peek_error())};
    ERR_clear_error();
    return false;
  }
  return true;
}

std::size_t TlsCodec::write(std::span<const ConstBuffer> buffers) {
  std::size_t taken = 0;
  std::size_t index = 0;
  std::size_t offset = 0;
  while (!write_failure_) {
    while (index < buffers.size() && offset == buffers[index].size()) {
      ++index;
      offset = 0;
    }
    if (index == buffers.size()) {
      break;
    }
    if (pending() >= out_limit && (!flush() || pending() >= out_limit)) {
      break;
    }
    const ConstBuffer current = buffers[index].subspan(offset);
    if (current.size() >= record_size || index + 1 == buffers.size()) {
      const std::size_t size = std::min(current.size(), record_size);
      if (seal(current.data(), size)) {
        offset += size;
        taken += size;
      }
      continue;
    }
    std::size_t gathered = 0;  // small pieces share a record
    while (index < buffers.size() && gathered < record_size) {
      const std::size_t part = std::min(buffers[index].size() - offset, record_size - gathered);
      if (part > 0) {
        std::memcpy(scratch_.get() + gathered, buffers[index].data() + offset, part);
      }
      gathered += part;
      offset += part;
      if (offset == buffers[index].size()) {
        ++index;
        offset = 0;
      }
    }
    if (seal(scratch_.get(), gathered)) {
      taken += gathered;
    }
  }
  flush();
  return taken;
}

bool TlsCodec::flush() {
  while (pending() > 0) {
    const ssize_t sent =
        ::send(fd_, out_.data() + out_sent_, pending(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno == EAGAIN) {
        return true;
      }
      write_failure_ = send_failure(errno);
      out_sent_ = out_.size();
      break;
    }
    out_sent_ += static_cast<std::size_t>(sent);
  }
  out_.clear();
  out_sent_ = 0;
  return !write_failure_;
}

void TlsCodec::shutdown() {
  if (!failure_ && !write_failure_) {
    ERR_clear_error();
    SSL_shutdown(ssl_);
    ERR_clear_error();
    flush();
  }
}

}  // namespace troupe::net
