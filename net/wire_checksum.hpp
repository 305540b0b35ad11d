// Why: the two builds of the checksum (see wire_avx2.cpp) behind one face. Internal to wire.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::net::detail {

bool have_avx2() noexcept;

/// XXH3 (64 bits, seed 0) of `size` bytes. Only where `have_avx2`.
std::uint64_t checksum_avx2(const void* data, std::size_t size) noexcept;

/// Continues a hash whose state XXH3_createState has made. Only where `have_avx2`.
void checksum_update_avx2(void* state, const void* data, std::size_t size) noexcept;

}  // namespace troupe::net::detail
