// Why: what a search for members reads comes from files, DNS servers and anybody on the local
// network. Everything that takes such bytes apart stands here, without sockets, so that tests and the
// fuzzer reach all of it.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/endpoint.hpp"
#include "net/error.hpp"

namespace troupe::net {

/// Where nodes of a local network ask for each other.
struct LanGroup {
  std::string ip = "239.255.84.82";
  std::uint16_t port = 47474;
};

/// "lan" or "lan:ip:port" with an IPv4 multicast address.
expected<LanGroup> parse_lan_group(std::string_view text);

enum class SourceKind : std::uint8_t { host, srv, file, lan };

struct DiscoverySource {
  SourceKind kind = SourceKind::host;
  HostPort where;    ///< host
  std::string name;  ///< srv: the DNS name; file: the path
  LanGroup group;    ///< lan
};

/// One of `DiscoveryConfig::sources`.
expected<DiscoverySource> parse_source(std::string_view text);

/// Addresses that were found, and what went wrong.
struct AddressList {
  std::vector<std::string> addresses;
  std::vector<std::string> problems;
};

/// "host:port" per line; empty lines and what follows a '#' do not count. A bad line is a problem, the
/// others count. At most `max_file_addresses`.
inline constexpr std::size_t max_file_addresses = 1000;
AddressList parse_address_file(std::string_view text);

struct SrvRecord {
  std::uint16_t priority = 0;
  std::uint16_t weight = 0;
  std::uint16_t port = 0;
  std::string target;  ///< empty: the service is not offered
};

/// The SRV records of a DNS message, by priority, then the heavier first. `ec::not_found` when the
/// server says that there is no such name, `ec::malformed`, or `ec::system_error` with its other words.
inline constexpr std::size_t max_srv_records = 64;
expected<std::vector<SrvRecord>> parse_srv_answer(std::span<const std::byte> message);

/// Little endian: "TRLN" (4), version (1), kind (1), zero (2), nonce (8), length and bytes of the
/// cluster's name (1 + n), length and bytes of the address (1 + n; empty in a query), XXH64 of all
/// before (8).
inline constexpr std::size_t max_lan_packet = 536;
enum class LanKind : std::uint8_t { query = 1, answer = 2 };

struct LanPacket {
  LanKind kind = LanKind::query;
  std::uint64_t nonce = 0;  ///< chosen by who asks, and sent back
  std::string cluster;
  std::string address;
};

/// Empty when a name or an address does not fit.
std::vector<std::byte> encode_lan(const LanPacket& packet);
expected<LanPacket> decode_lan(std::span<const std::byte> bytes);

bool is_numeric(const std::string& host);
/// "ip:port" or "[v6]:port".
std::string join_address(const std::string& host, std::uint16_t port);
/// `address` with `sender` in place of a host that means "any".
std::string fill_in_host(const std::string& address, const std::string& sender);
/// Each once, the first of them stays.
std::vector<std::string> without_repetitions(std::vector<std::string> addresses);

}  // namespace troupe::net
