#include "net/discovery_parse.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <tuple>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace troupe::net {

namespace {

constexpr std::size_t max_text = 300;
constexpr std::size_t max_problems = 10;

std::string quoted(std::string_view text) {
  std::string result{text.substr(0, max_text)};
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      c = '?';
    }
  }
  return "'" + result + "'";
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  return first == std::string_view::npos
             ? std::string_view{}
             : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

bool dns_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

/// Reads forwards through bytes of a stranger; after a step too far everything is zero and `good` is
/// false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool good() const noexcept { return good_; }
  std::size_t position() const noexcept { return at_; }

  std::span<const std::byte> take(std::size_t count) {
    if (!good_ || count > bytes_.size() - at_) {
      good_ = false;
      return {};
    }
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }
  std::uint8_t byte() {
    const auto one = take(1);
    return one.empty() ? std::uint8_t{0} : std::to_integer<std::uint8_t>(one[0]);
  }
  std::uint16_t big16() {
    const std::uint16_t high = byte();
    return static_cast<std::uint16_t>((high << 8U) | byte());
  }
  std::string text(std::size_t count) {
    const auto bytes = take(count);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  bool good_ = true;
};

/// Steps over a name, which may end in a pointer.
void skip_name(Reader& reader) {
  while (reader.good()) {
    const std::uint8_t length = reader.byte();
    if ((length & 0xC0U) == 0xC0U) {
      reader.byte();
      return;
    }
    if (length == 0) {
      return;
    }
    reader.take((length & 0xC0U) == 0 ? length : ~std::size_t{0});
  }
}

/// The name at `at`. Pointers lead backwards only, so that they come to an end.
std::optional<std::string> name_at(std::span<const std::byte> message, std::size_t at) {
  constexpr std::size_t longest = 253;
  std::string name;
  std::size_t bound = at;
  Reader reader(message);
  reader.take(at);
  while (reader.good()) {
    const std::uint8_t length = reader.byte();
    if ((length & 0xC0U) == 0xC0U) {
      const std::size_t target = ((length & 0x3FU) << 8U) | reader.byte();
      if (!reader.good() || target >= bound) {
        return std::nullopt;
      }
      bound = target;
      reader = Reader(message);
      reader.take(target);
      continue;
    }
    if (length == 0) {
      return reader.good() ? std::optional{name} : std::nullopt;
    }
    const std::string label = reader.text((length & 0xC0U) == 0 ? length : ~std::size_t{0});
    if (label.empty() || !std::all_of(label.begin(), label.end(), dns_character) ||
        name.size() + label.size() + 1 > longest) {
      return std::nullopt;
    }
    name += (name.empty() ? "" : ".") + label;
  }
  return std::nullopt;
}

error response_code(unsigned code) {
  switch (code) {
    case 0:
      return {};
    case 3:
      return {ec::not_found, "there is no such name"};
    default:
      return {ec::system_error, "the server answered with code " + std::to_string(code)};
  }
}

}  // namespace

bool is_numeric(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> ignored{};
  return ::inet_pton(AF_INET, host.c_str(), ignored.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), ignored.data()) == 1;
}

std::string join_address(const std::string& host, std::uint16_t port) {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string fill_in_host(const std::string& address, const std::string& sender) {
  const auto where = parse_address(address);
  return where && (where->host == "0.0.0.0" || where->host == "::")
             ? join_address(sender, where->port)
             : address;
}

std::vector<std::string> without_repetitions(std::vector<std::string> addresses) {
  std::set<std::string> seen;
  std::vector<std::string> result;
  for (std::string& address : addresses) {
    if (seen.insert(address).second) {
      result.push_back(std::move(address));
    }
  }
  return result;
}

expected<LanGroup> parse_lan_group(std::string_view text) {
  LanGroup group;
  if (text == "lan") {
    return group;
  }
  const auto where = text.rfind("lan:", 0) == 0
                         ? parse_address(text.substr(4))
                         : expected<HostPort>{fail(ec::invalid_argument, "")};
  in_addr ip{};
  if (!where || where->port == 0 || ::inet_pton(AF_INET, where->host.c_str(), &ip) != 1 ||
      (ntohl(ip.s_addr) >> 28U) != 14) {
    return fail(ec::invalid_argument,
                quoted(text) +
                    " is not \"lan\" or \"lan:<IPv4 multicast address>:<port>\" "
                    "(224.0.0.0 to 239.255.255.255)");
  }
  group.ip = where->host;
  group.port = where->port;
  return group;
}

expected<DiscoverySource> parse_source(std::string_view text) {
  DiscoverySource source;
  text = trimmed(text);
  if (text.rfind("file:", 0) == 0) {
    source.kind = SourceKind::file;
    source.name = text.substr(5);
    return source.name.empty() || source.name.find('\0') != std::string::npos
               ? fail(ec::invalid_argument, quoted(text) + " names no file")
               : expected<DiscoverySource>{source};
  }
  if (text.rfind("srv:", 0) == 0) {
    source.kind = SourceKind::srv;
    source.name = text.substr(4);
    const bool fits = std::all_of(source.name.begin(), source.name.end(),
                                  [](char c) { return dns_character(c) || c == '.'; });
    return source.name.empty() || source.name.size() > 255 || !fits
               ? fail(ec::invalid_argument, quoted(text) +
                                                " names no DNS service; write it like "
                                                "\"srv:_troupe._tcp.example.org\"")
               : expected<DiscoverySource>{source};
  }
  if (text == "lan" || text.rfind("lan:", 0) == 0) {
    auto group = parse_lan_group(text);
    // A host may be called "lan".
    const auto host = group ? expected<HostPort>{HostPort{}} : parse_address(text);
    if (!group && (!host || text.find(':') != text.rfind(':'))) {
      return fail(group.error());
    }
    if (group) {
      source.kind = SourceKind::lan;
      source.group = std::move(*group);
      return source;
    }
  }
  const auto where = parse_address(text);
  if (!where || where->port == 0) {
    return fail(ec::invalid_argument,
                where ? quoted(text) + " has no port to dial" : where.error().text());
  }
  source.where = *where;
  return source;
}

AddressList parse_address_file(std::string_view text) {
  AddressList result;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    const std::string_view whole = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::string_view line = trimmed(whole.substr(0, whole.find('#')));
    if (line.empty()) {
      continue;
    }
    const auto where = parse_address(line);
    if (!where || where->port == 0) {
      if (result.problems.size() < max_problems) {
        result.problems.push_back("line " + std::to_string(number) + ": " + quoted(line) +
                                  " is not \"host:port\"");
      }
    } else if (result.addresses.size() == max_file_addresses) {
      result.problems.push_back("line " + std::to_string(number) + ": more than " +
                                std::to_string(max_file_addresses) +
                                " addresses; the others are left out");
      break;
    } else {
      result.addresses.emplace_back(line);
    }
  }
  result.addresses = without_repetitions(std::move(result.addresses));
  return result;
}

expected<std::vector<SrvRecord>> parse_srv_answer(std::span<const std::byte> message) {
  constexpr std::uint16_t type_srv = 33;
  constexpr std::uint16_t class_in = 1;
  const auto malformed = [] {
    return fail(ec::malformed, "the server's answer is not a DNS message");
  };
  Reader reader(message);
  reader.take(2);
  const std::uint16_t flags = reader.big16();
  const std::uint16_t questions = reader.big16();
  const std::uint16_t answers = reader.big16();
  reader.take(4);
  if (!reader.good() || (flags & 0x8000U) == 0) {
    return malformed();
  }
  if (error refused = response_code(flags & 0xFU)) {
    return fail(std::move(refused));
  }
  for (std::uint16_t i = 0; i < questions && reader.good(); ++i) {
    skip_name(reader);
    reader.take(4);
  }
  std::vector<SrvRecord> records;
  for (std::uint16_t i = 0; i < answers && reader.good() && records.size() < max_srv_records; ++i) {
    skip_name(reader);
    const std::uint16_t type = reader.big16();
    const std::uint16_t kind = reader.big16();
    reader.take(4);
    const std::uint16_t length = reader.big16();
    const std::size_t at = reader.position();
    const auto data = reader.take(length);
    if (!reader.good() || type != type_srv || kind != class_in) {
      continue;
    }
    Reader fields(data);
    SrvRecord record;
    record.priority = fields.big16();
    record.weight = fields.big16();
    record.port = fields.big16();
    auto target = fields.good() ? name_at(message.first(at + length), at + 6) : std::nullopt;
    if (!target) {
      return malformed();
    }
    record.target = std::move(*target);
    records.push_back(std::move(record));
  }
  if (!reader.good()) {
    return malformed();
  }
  std::stable_sort(records.begin(), records.end(), [](const SrvRecord& a, const SrvRecord& b) {
    return std::tuple{a.priority, b.weight} < std::tuple{b.priority, a.weight};
  });
  return records;
}

namespace {

constexpr std::string_view lan_magic = "TRLN";
constexpr std::uint8_t lan_version = 1;
constexpr std::size_t hash_size = 8;
constexpr std::size_t max_field = 255;

void put64(std::vector<std::byte>& out, std::uint64_t value) {
  for (unsigned i = 0; i < 8; ++i) {
    out.push_back(static_cast<std::byte>((value >> (8 * i)) & 0xFFU));
  }
}

std::uint64_t get64(Reader& reader) {
  std::uint64_t value = 0;
  for (unsigned i = 0; i < 8; ++i) {
    value |= std::uint64_t{reader.byte()} << (8 * i);
  }
  return value;
}

void put_text(std::vector<std::byte>& out, std::string_view text) {
  for (const char c : text) {
    out.push_back(static_cast<std::byte>(c));
  }
}

}  // namespace

std::vector<std::byte> encode_lan(const LanPacket& packet) {
  std::vector<std::byte> out;
  if (packet.cluster.empty() || packet.cluster.size() > max_field ||
      packet.address.size() > max_field ||
      packet.address.empty() != (packet.kind == LanKind::query)) {
    return out;
  }
  put_text(out, lan_magic);
  out.push_back(std::byte{lan_version});
  out.push_back(static_cast<std::byte>(packet.kind));
  out.resize(out.size() + 2);
  put64(out, packet.nonce);
  out.push_back(static_cast<std::byte>(packet.cluster.size()));
  put_text(out, packet.cluster);
  out.push_back(static_cast<std::byte>(packet.address.size()));
  put_text(out, packet.address);
  put64(out, XXH64(out.data(), out.size(), 0));
  return out;
}

expected<LanPacket> decode_lan(std::span<const std::byte> bytes) {
  const auto refuse = [](const char* why) {
    return fail(ec::malformed, std::string{"packet from the local network: "} + why);
  };
  if (bytes.size() < hash_size || bytes.size() > max_lan_packet) {
    return refuse("its size is wrong");
  }
  Reader reader(bytes);
  if (reader.text(lan_magic.size()) != lan_magic || reader.byte() != lan_version) {
    return refuse("not one of Troupe, or another version");
  }
  LanPacket packet;
  const std::uint8_t kind = reader.byte();
  const std::uint16_t zero = reader.big16();
  packet.nonce = get64(reader);
  packet.cluster = reader.text(reader.byte());
  packet.address = reader.text(reader.byte());
  const std::size_t hashed = reader.position();
  const std::uint64_t hash = get64(reader);
  if (!reader.good() || reader.position() != bytes.size() ||
      hash != XXH64(bytes.data(), hashed, 0)) {
    return refuse("cut or changed on its way");
  }
  if ((kind != 1 && kind != 2) || zero != 0 || packet.cluster.empty() ||
      packet.address.empty() != (kind == 1)) {
    return refuse("its fields do not fit together");
  }
  packet.kind = static_cast<LanKind>(kind);
  const auto where =
      kind == 1 ? expected<HostPort>{HostPort{"", 1}} : parse_address(packet.address);
  if (!where || where->port == 0) {
    return refuse("the address in it is none");
  }
  return packet;
}

}  // namespace troupe::net
