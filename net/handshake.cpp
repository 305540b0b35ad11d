#include "net/handshake.hpp"

#include <algorithm>

#include "net/proto/handshake.pb.h"

namespace troupe::net {

namespace {

constexpr std::size_t max_cluster_name = 256;

std::vector<std::byte> make_frame(FrameType type, const google::protobuf::MessageLite& body) {
  const std::size_t size = body.ByteSizeLong();
  std::vector<std::byte> result(sizeof(FrameHeader) + size);
  body.SerializeToArray(result.data() + sizeof(FrameHeader), static_cast<int>(size));
  FrameHeader header;
  header.type = type;
  header.length = static_cast<std::uint32_t>(size);
  header.payload_check = checksum(std::span{result}.subspan(sizeof(FrameHeader)));
  write_frame_header(result.data(), header);
  return result;
}

// Text from the other side goes to logs: keep it short and printable.
std::string printable(const std::string& text, std::size_t limit) {
  std::string result;
  for (const char c : text.substr(0, limit)) {
    result += (c >= ' ' && c != 127) ? c : '?';
  }
  return result;
}

}  // namespace

std::vector<std::byte> hello_frame(FrameType type, const Hello& hello) {
  proto::Hello out;
  out.set_version_min(hello.version_min);
  out.set_version_max(hello.version_max);
  out.set_cluster(hello.cluster);
  std::array<char, 16> id{};
  const std::array<std::uint64_t, 2> words{hello.node.high(), hello.node.low()};
  std::memcpy(id.data(), words.data(), id.size());
  out.set_node_id(id.data(), id.size());
  out.set_name(hello.name);
  out.set_build(hello.build);
  out.set_address(hello.address);
  out.set_session(hello.session);
  out.set_expects(hello.expects);
  out.set_connection(hello.connection);
  out.set_received(hello.received);
  for (const auto limit : hello.credit) {
    out.add_credit(limit);
  }
  out.set_max_message(hello.max_message);
  out.set_max_frame(hello.max_frame);
  return make_frame(type, out);
}

std::vector<std::byte> reject_frame(FrameType type, const error& reason) {
  proto::Reject out;
  out.set_code(std::string{to_string(reason.code())});
  out.set_text(reason.text().substr(0, 1024));
  return make_frame(type, out);
}

expected<Hello> parse_hello(std::span<const std::byte> payload) {
  proto::Hello in;
  if (payload.size() > max_handshake_payload ||
      !in.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
    return fail(ec::malformed, "handshake is not a Hello message");
  }
  if (in.node_id().size() != 16 || in.cluster().size() > max_cluster_name || in.session() == 0 ||
      in.connection() == 0 || in.credit_size() != static_cast<int>(lane_count) ||
      in.max_frame() < 1024 || in.max_message() < 1024 || in.version_min() > in.version_max()) {
    return fail(ec::malformed, "handshake has fields out of range");
  }
  Hello result;
  std::array<std::uint64_t, 2> words{};
  std::memcpy(words.data(), in.node_id().data(), 16);
  result.node = NodeId{words[0], words[1]};
  if (!result.node) {
    return fail(ec::malformed, "handshake has an empty node id");
  }
  result.version_min = in.version_min();
  result.version_max = in.version_max();
  result.cluster = in.cluster();  // compared as it is
  result.name = printable(in.name(), 256);
  result.build = printable(in.build(), 256);
  result.address = printable(in.address(), 256);
  result.session = in.session();
  result.expects = in.expects();
  result.connection = in.connection();
  result.received = in.received();
  std::copy_n(in.credit().begin(), lane_count, result.credit.begin());
  result.max_message = in.max_message();
  result.max_frame = in.max_frame();
  return result;
}

error parse_reject(std::span<const std::byte> payload) {
  proto::Reject in;
  if (payload.size() > max_handshake_payload ||
      !in.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
    return {ec::malformed, "the peer ended the connection without a readable reason"};
  }
  auto code = ec_from_string(in.code());
  if (code == ec::none) {
    code = ec::system_error;
  }
  return {code, printable(in.text(), 1024)};
}

expected<std::uint32_t> check_hello(const Hello& self, const Hello& peer) {
  if (self.cluster != peer.cluster) {
    return fail(ec::handshake_refused, "cluster names differ: this node belongs to \"" +
                                           self.cluster + "\", node " + short_string(peer.node) +
                                           " to \"" + printable(peer.cluster, max_cluster_name) +
                                           "\"");
  }
  if (self.node == peer.node) {
    return fail(ec::handshake_refused, "a node cannot be its own peer (node " +
                                           short_string(peer.node) + " dialled itself)");
  }
  const auto version = std::min(self.version_max, peer.version_max);
  if (version < self.version_min || version < peer.version_min) {
    const auto range = [](const Hello& h) {
      return std::to_string(h.version_min) + " to " + std::to_string(h.version_max) + " (build " +
             h.build + ")";
    };
    return fail(ec::handshake_refused, "no common protocol version: this node speaks " +
                                           range(self) + ", node " + short_string(peer.node) + " " +
                                           range(peer) + "; update the older one");
  }
  return version;
}

SessionVerdict judge_session(const SessionState& state, const Hello& peer,
                             const NodeId& initiator) {
  if (!state.exists) {
    return peer.expects == 0 ? SessionVerdict::attach : SessionVerdict::stale;
  }
  if (peer.expects != 0 && peer.expects != state.own) {
    return SessionVerdict::stale;
  }
  if (state.peer != 0 && state.peer != peer.session) {
    return SessionVerdict::restart;
  }
  if (!state.connected || peer.connection > state.connection) {
    return SessionVerdict::attach;
  }
  // Equal numbers: two dials at once (the smaller id's stays), or a dialler that never saw the answer to
  // its first try (its newer try stays).
  if (peer.connection < state.connection || state.initiator < initiator) {
    return SessionVerdict::duplicate;
  }
  return SessionVerdict::attach;
}

}  // namespace troupe::net
