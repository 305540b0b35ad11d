#include "net/discovery_lan.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <system_error>
#include <thread>

#include "net/discovery.hpp"

namespace troupe::net {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t max_interfaces = 32;
/// Of what comes in during one search.
constexpr std::size_t max_packets = 1024;
constexpr std::size_t max_answers = 256;
constexpr std::uint64_t answers_per_second = 50;
/// One byte more than a packet may have, so that a longer one is noticed.
using Buffer = std::array<std::byte, max_lan_packet + 1>;

class Descriptor {
 public:
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

int datagram_socket() { return ::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

sockaddr_in socket_address(const LanGroup& group) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(group.port);
  ::inet_pton(AF_INET, group.ip.c_str(), &result.sin_addr);
  return result;
}

/// IPv4 networks of this host with the index of their interface; the loopback too, on which the
/// processes of a host without a network find each other.
std::map<int, in_addr> interfaces() {
  std::map<int, in_addr> result;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return result;
  }
  for (const ifaddrs* entry = list; entry != nullptr && result.size() < max_interfaces;
       entry = entry->ifa_next) {
    if (entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_INET &&
        (entry->ifa_flags & IFF_UP) != 0) {
      sockaddr_in address{};
      std::memcpy(&address, entry->ifa_addr, sizeof address);
      result.emplace(static_cast<int>(::if_nametoindex(entry->ifa_name)), address.sin_addr);
    }
  }
  ::freeifaddrs(list);
  return result;
}

ip_mreqn membership(const LanGroup& group, int interface, in_addr address) {
  ip_mreqn result{};
  ::inet_pton(AF_INET, group.ip.c_str(), &result.imr_multiaddr);
  result.imr_address = address;
  result.imr_ifindex = interface;
  return result;
}

std::string text_of(const in_addr& address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, &address, text.data(), text.size());
  return text.data();
}

/// True when at least one network took it.
bool ask(int fd, const LanGroup& group, const std::vector<std::byte>& query) {
  const sockaddr_in target = socket_address(group);
  bool sent = false;
  for (const auto& [index, address] : interfaces()) {
    const ip_mreqn network = membership(group, index, address);
    if (::setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &network, sizeof network) == 0 &&
        ::sendto(fd, query.data(), query.size(), MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&target), sizeof target) > 0) {
      sent = true;
    }
  }
  return sent;
}

/// The next packet that is one; false when there is none for now. Garbage is counted in `ignored`.
struct Incoming {
  LanPacket packet;
  sockaddr_in from{};
};
enum class Receipt : std::uint8_t { packet, garbage, nothing };

Receipt receive(int fd, Incoming& incoming) {
  Buffer buffer;
  socklen_t size = sizeof incoming.from;
  const ssize_t got = ::recvfrom(fd, buffer.data(), buffer.size(), MSG_DONTWAIT,
                                 reinterpret_cast<sockaddr*>(&incoming.from), &size);
  if (got < 0) {
    // What a datagram before came to (ICMP) is not about this one.
    return errno == EAGAIN || errno == EBADF ? Receipt::nothing : Receipt::garbage;
  }
  auto packet = decode_lan(std::span<const std::byte>{buffer}.first(static_cast<std::size_t>(got)));
  if (!packet || incoming.from.sin_family != AF_INET) {
    return Receipt::garbage;
  }
  incoming.packet = std::move(*packet);
  return Receipt::packet;
}

std::uint64_t new_nonce() {
  std::random_device device;
  return (std::uint64_t{device()} << 32U) | device();
}

void collect(int fd, const LanPacket& query, std::size_t& packets, AddressList& found) {
  Incoming incoming;
  while (packets < max_packets && found.addresses.size() < max_answers) {
    const Receipt receipt = receive(fd, incoming);
    if (receipt == Receipt::nothing) {
      return;
    }
    ++packets;
    if (receipt == Receipt::packet && incoming.packet.kind == LanKind::answer &&
        incoming.packet.nonce == query.nonce && incoming.packet.cluster == query.cluster) {
      found.addresses.push_back(
          fill_in_host(incoming.packet.address, text_of(incoming.from.sin_addr)));
    }
  }
}

}  // namespace

AddressList query_lan(const LanGroup& group, const std::string& cluster, Duration wait) {
  AddressList found;
  const LanPacket query{LanKind::query, new_nonce(), cluster, ""};
  const auto bytes = encode_lan(query);
  const Descriptor fd(datagram_socket());
  if (bytes.empty() || fd.get() < 0) {
    found.problems.push_back(bytes.empty()
                                 ? "lan: the cluster's name must have 1 to 255 bytes"
                                 : std::string{"lan: no socket: "} + std::strerror(errno));
    return found;
  }
  const auto end = Clock::now() + wait;
  // Twice: a datagram may be lost.
  auto again = Clock::now() + wait / 3;
  bool sent = ask(fd.get(), group, bytes);
  std::size_t packets = 0;
  for (auto now = Clock::now(); now < end && packets < max_packets; now = Clock::now()) {
    if (now >= again) {
      sent = ask(fd.get(), group, bytes) || sent;
      again = end;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::min(again, end) - now).count();
    pollfd ready{fd.get(), POLLIN, 0};
    ::poll(&ready, 1, static_cast<int>(std::clamp<std::int64_t>(left + 1, 1, 1000)));
    collect(fd.get(), query, packets, found);
  }
  found.addresses = without_repetitions(std::move(found.addresses));
  if (!sent) {
    found.problems.push_back("lan: no network of this host takes multicast to " + group.ip);
  } else if (found.addresses.empty()) {
    found.problems.push_back("lan: no node of cluster '" + cluster + "' has answered");
  }
  return found;
}

// -- the answering side ---------------------------------------------------------------------------

struct LanResponder::State {
  State(int socket, int event) : fd(socket), wake(event) {}

  void answer(const Incoming& query);
  void run();

  const Descriptor fd;
  const Descriptor wake;
  LanPacket reply;
  std::thread thread;
  std::atomic<std::uint64_t> answered{0};
  std::atomic<std::uint64_t> ignored{0};
  Clock::time_point second{};
  std::uint64_t in_second = 0;
};

void LanResponder::State::run() {
  pthread_setname_np(pthread_self(), "troupe-lan");
  for (;;) {
    std::array<pollfd, 2> ready{{{fd.get(), POLLIN, 0}, {wake.get(), POLLIN, 0}}};
    ::poll(ready.data(), ready.size(), -1);
    if (ready[1].revents != 0) {
      return;
    }
    Incoming incoming;
    // Bounded, so that a flood cannot keep `stop` waiting.
    for (std::size_t i = 0; i < max_packets; ++i) {
      const Receipt receipt = receive(fd.get(), incoming);
      if (receipt == Receipt::nothing) {
        break;
      }
      if (receipt == Receipt::packet) {
        answer(incoming);
      } else {
        ++ignored;
      }
    }
  }
}

void LanResponder::State::answer(const Incoming& query) {
  const auto now = Clock::now();
  if (now - second >= std::chrono::seconds{1}) {
    second = now;
    in_second = 0;
  }
  if (query.packet.kind != LanKind::query || query.packet.cluster != reply.cluster ||
      in_second >= answers_per_second) {
    ++ignored;
    return;
  }
  ++in_second;
  reply.nonce = query.packet.nonce;
  const auto bytes = encode_lan(reply);
  ::sendto(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
           reinterpret_cast<const sockaddr*>(&query.from), sizeof query.from);
  ++answered;
}

LanResponder::LanResponder() = default;

LanResponder::~LanResponder() { stop(); }

expected<void> LanResponder::start(const std::string& cluster, const std::string& address,
                                   const std::string& group) {
  const auto where = parse_lan_group(group);
  if (!where) {
    return fail(where.error());
  }
  LanPacket reply{LanKind::answer, 0, cluster, address};
  if (state_) {
    return fail(ec::conflict, "lan: this responder answers already");
  }
  if (!decode_lan(encode_lan(reply))) {
    return fail(ec::invalid_argument, "lan: cluster '" + cluster + "' or address '" + address +
                                          "' is empty, longer than 255 bytes, or not one");
  }
  auto state = std::make_shared<State>(datagram_socket(), ::eventfd(0, EFD_CLOEXEC));
  const auto refuse = [](const std::string& what) {
    return fail(ec::system_error, "lan: " + what + ": " + std::strerror(errno));
  };
  if (state->fd.get() < 0 || state->wake.get() < 0) {
    return refuse("no socket");
  }
  // Several nodes of one host answer. Bound to the group: what is sent to this host alone does not
  // get an answer.
  const int one = 1;
  ::setsockopt(state->fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  const sockaddr_in here = socket_address(*where);
  if (::bind(state->fd.get(), reinterpret_cast<const sockaddr*>(&here), sizeof here) != 0) {
    return refuse("cannot listen on " + join_address(where->ip, where->port));
  }
  bool joined = false;
  for (const auto& [index, ip] : interfaces()) {
    const ip_mreqn network = membership(*where, index, ip);
    joined = ::setsockopt(state->fd.get(), IPPROTO_IP, IP_ADD_MEMBERSHIP, &network,
                          sizeof network) == 0 ||
             joined;
  }
  if (!joined) {
    return refuse("no network of this host takes part in the group " + where->ip);
  }
  state->reply = std::move(reply);
  try {
    state->thread = std::thread([raw = state.get()] { raw->run(); });
  } catch (const std::system_error& ex) {
    return fail(ec::system_error, std::string{"lan: cannot start a thread: "} + ex.what());
  }
  state_ = std::move(state);
  return {};
}

void LanResponder::stop() {
  if (const auto state = std::move(state_)) {
    state_ = nullptr;
    const std::uint64_t one = 1;
    while (::write(state->wake.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
    state->thread.join();
  }
}

std::uint64_t LanResponder::answered() const { return state_ ? state_->answered.load() : 0; }

std::uint64_t LanResponder::ignored() const { return state_ ? state_->ignored.load() : 0; }

}  // namespace troupe::net
