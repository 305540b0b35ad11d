// Why: hostile tests need peers that speak the protocol byte by byte, right up to the point where
// they break it: frames and records by hand, over plain blocking sockets on which every wait is
// bounded.
// Thread-safety: functions are pure; an `Intruder` belongs to one thread.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/handshake.hpp"
#include "net/philox.hpp"
#include "net/wire.hpp"

namespace troupe::test {

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::string random_bytes(PhiloxStream& random, std::size_t size) {
  std::string out(size, '\0');
  for (auto& c : out) {
    c = static_cast<char>(random());
  }
  return out;
}

inline std::uint64_t random_word(PhiloxStream& random) {
  const std::uint64_t high = random();
  return (high << 32U) | random();
}

/// What differs from a well-formed frame.
struct FrameFields {
  net::FrameType type = net::FrameType::records;
  std::uint8_t lane = 1;
  std::uint64_t sequence = 1;
  std::uint64_t ack = 0;
  std::uint64_t credit = std::uint64_t{64} << 20U;
  std::uint16_t flags = 0;
  std::optional<std::uint32_t> length = std::nullopt;  ///< instead of the payload's
};

/// A frame with right checksums.
inline std::string frame(const FrameFields& fields, const std::string& payload) {
  net::FrameHeader header;
  header.length = fields.length.value_or(static_cast<std::uint32_t>(payload.size()));
  header.type = fields.type;
  header.lane = fields.lane;
  header.flags = fields.flags;
  header.sequence = fields.sequence;
  header.ack = fields.ack;
  header.credit.fill(fields.credit);
  header.payload_check = net::checksum(std::as_bytes(std::span{payload}));
  std::string out(sizeof(net::FrameHeader), '\0');
  net::write_frame_header(reinterpret_cast<std::byte*>(out.data()), header);
  return out + payload;
}

/// A fragment frame with right checksums.
inline std::string fragment(FrameFields fields, std::uint64_t total, std::uint64_t offset,
                            const std::string& data) {
  std::string payload(sizeof(net::FragmentHeader), '\0');
  net::write_pod(reinterpret_cast<std::byte*>(payload.data()), net::FragmentHeader{total, offset});
  fields.type = net::FrameType::fragment;
  return frame(fields, payload + data);
}

/// A padded record; `size` replaces the size of the body in its header.
inline std::string record(net::RecordHeader header, const std::string& body,
                          std::optional<std::uint32_t> size = std::nullopt) {
  header.size = size.value_or(static_cast<std::uint32_t>(body.size()));
  std::string out(sizeof header, '\0');
  net::write_pod(reinterpret_cast<std::byte*>(out.data()), header);
  out += body;
  out.resize(sizeof header + net::padded(body.size()));
  return out;
}

inline std::string upgrade_request(const NodeId& node, const std::string& cluster,
                                   const std::string& purpose = "link") {
  return "GET /peer HTTP/1.1\r\nHost: x\r\nUpgrade: troupe/1\r\nConnection: Upgrade\r\n"
         "Troupe-Node: " +
         to_string(node) + "\r\nTroupe-Cluster: " + cluster + "\r\nTroupe-Purpose: " + purpose +
         "\r\n\r\n";
}

/// A Hello that any node of `cluster` would accept.
inline net::Hello plausible_hello(const NodeId& node, const std::string& cluster,
                                  std::uint64_t session) {
  net::Hello hello;
  hello.cluster = cluster;
  hello.node = node;
  hello.name = "intruder";
  hello.build = "test";
  hello.session = session | 1U;
  hello.connection = 1;
  hello.credit.fill(std::uint64_t{64} << 20U);
  hello.max_message = std::size_t{1} << 30U;
  hello.max_frame = 1U << 18U;
  return hello;
}

inline std::string hello_bytes(const net::Hello& hello) {
  return text_of(net::hello_frame(net::FrameType::hello, hello));
}

/// A socket that speaks whatever it is told.
class Intruder {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Intruder(std::uint16_t port) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval limit{10, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(port);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0;
  }
  ~Intruder() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Intruder(const Intruder&) = delete;
  Intruder& operator=(const Intruder&) = delete;

  bool connected() const { return connected_; }
  bool ended() const { return ended_; }
  /// What was read and not taken by `next_record`.
  const std::string& input() const { return input_; }

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

  void half_close() { ::shutdown(fd_, SHUT_WR); }

  /// Closing resets the connection instead of ending it politely.
  void close_abruptly() {
    const linger abrupt{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &abrupt, sizeof abrupt);
  }

  /// Reads what there is, for at most `limit`. False at the end or when nothing came.
  bool read_some(std::chrono::milliseconds limit) {
    pollfd waiting{fd_, POLLIN, 0};
    if (ended_ || ::poll(&waiting, 1, static_cast<int>(limit.count())) <= 0) {
      return false;
    }
    char chunk[65536];
    const ssize_t got = ::recv(fd_, chunk, sizeof chunk, 0);
    if (got <= 0) {
      ended_ = true;
      return false;
    }
    input_.append(chunk, static_cast<std::size_t>(got));
    return true;
  }

  /// Whether the other side ends the connection within `limit`.
  bool wait_for_end(std::chrono::milliseconds limit) {
    const auto stop = Clock::now() + limit;
    while (!ended_ && Clock::now() < stop) {
      input_.clear();
      read_some(std::chrono::duration_cast<std::chrono::milliseconds>(stop - Clock::now()));
    }
    return ended_;
  }

  struct Received {
    net::RecordHeader header;
    std::string body;
  };

  /// The next record of `kind` from the other side (behind its upgrade and welcome), or nothing.
  std::optional<Received> next_record(net::RecordKind kind,
                                      std::chrono::milliseconds limit = std::chrono::seconds{10}) {
    const auto stop = Clock::now() + limit;
    for (;;) {
      while (!records_.empty()) {
        Received first = std::move(records_.front());
        records_.erase(records_.begin());
        if (first.header.kind == kind) {
          return first;
        }
      }
      if (take_frame()) {
        continue;
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(stop - Clock::now());
      if (left.count() <= 0 || ended_) {
        return std::nullopt;
      }
      read_some(left);
    }
  }

 private:
  // One frame out of the input; its records are kept.
  bool take_frame() {
    if (!upgraded_) {
      const auto end = input_.find("\r\n\r\n");
      if (end == std::string::npos) {
        return false;
      }
      input_.erase(0, end + 4);
      upgraded_ = true;
    }
    if (input_.size() < sizeof(net::FrameHeader)) {
      return false;
    }
    const auto header =
        net::read_pod<net::FrameHeader>(reinterpret_cast<const std::byte*>(input_.data()));
    const std::size_t size = sizeof header + header.length;
    if (input_.size() < size) {
      return false;
    }
    if (header.type == net::FrameType::records) {
      for (std::size_t at = sizeof header; at + sizeof(net::RecordHeader) <= size;) {
        const auto found =
            net::read_pod<net::RecordHeader>(reinterpret_cast<const std::byte*>(&input_[at]));
        records_.push_back({found, input_.substr(at + sizeof found, found.size)});
        at += sizeof found + net::padded(found.size);
      }
    }
    input_.erase(0, size);
    return true;
  }

  int fd_ = -1;
  bool connected_ = false;
  bool ended_ = false;
  bool upgraded_ = false;
  std::string input_;
  std::vector<Received> records_;
};

}  // namespace troupe::test
