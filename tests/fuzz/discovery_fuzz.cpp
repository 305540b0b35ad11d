// Arbitrary bytes as a packet of the local network, as a DNS answer, as a file of addresses and as a
// source: each ends with a value or an error, and what was accepted is fit for use.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "net/discovery_parse.hpp"

namespace {

using namespace troupe;
using namespace troupe::net;

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

void lan(std::span<const std::byte> bytes) {
  const auto packet = decode_lan(bytes);
  if (!packet) {
    require(packet.error().code() == ec::malformed);
    return;
  }
  const auto again = encode_lan(*packet);
  require(std::vector<std::byte>(bytes.begin(), bytes.end()) == again);
  require(packet->kind == LanKind::query || parse_address(packet->address));
}

/// With a checksum that is right, so that what it covers is looked at.
void lan_well_summed(std::span<const std::byte> bytes) {
  std::vector<std::byte> packet(bytes.begin(), bytes.end());
  if (packet.size() < 8) {
    return;
  }
  const std::size_t at = packet.size() - 8;
  const std::uint64_t hash = XXH64(packet.data(), at, 0);
  for (unsigned i = 0; i < 8; ++i) {
    packet[at + i] = static_cast<std::byte>((hash >> (8 * i)) & 0xFFU);
  }
  lan(packet);
}

void srv(std::span<const std::byte> bytes) {
  const auto records = parse_srv_answer(bytes);
  if (!records) {
    return;
  }
  require(records->size() <= max_srv_records);
  for (std::size_t i = 0; i < records->size(); ++i) {
    const SrvRecord& record = (*records)[i];
    require(record.target.size() <= 253);
    require(record.target.find_first_of(" /:[]@\n") == std::string::npos);
    require(i == 0 || (*records)[i - 1].priority <= record.priority);
  }
}

void file(std::string_view text) {
  const AddressList list = parse_address_file(text);
  require(list.addresses.size() <= max_file_addresses && list.problems.size() <= 11);
  for (const std::string& address : list.addresses) {
    require(parse_address(address).has_value());
  }
  require(without_repetitions(list.addresses) == list.addresses);
}

void source(std::string_view text) {
  const auto parsed = parse_source(text);
  require(parsed || !parsed.error().text().empty());
  if (parsed && parsed->kind == SourceKind::host) {
    require(parsed->where.port != 0 && !parsed->where.host.empty());
    is_numeric(parsed->where.host);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::span<const std::byte> bytes{reinterpret_cast<const std::byte*>(data) + 1, size - 1};
  const std::string_view text{reinterpret_cast<const char*>(data) + 1, size - 1};
  switch (data[0] % 4) {
    case 0:
      lan(bytes);
      lan_well_summed(bytes);
      break;
    case 1:
      srv(bytes);
      break;
    case 2:
      file(text);
      break;
    default:
      source(text);
  }
  return 0;
}
