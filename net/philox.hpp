// Why: everything random in Troupe comes from a counter-based generator, so that a draw depends on
// (seed, role, index, step) and on nothing else: not on the thread, the node or the order of events.
// Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
// Thread-safety: `philox` is a pure function; a `PhiloxStream` belongs to one thread.
#pragma once

#include <array>
#include <cstdint>

namespace troupe {

using PhiloxBlock = std::array<std::uint32_t, 4>;

/// One 128-bit block for a 128-bit counter and a 64-bit key.
constexpr PhiloxBlock philox(PhiloxBlock counter, std::uint64_t key) noexcept {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32U);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32U) ^ counter[1] ^ k0, static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32U) ^ counter[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return counter;
}

/// A sequence of draws for one (seed, role, index); satisfies UniformRandomBitGenerator.
class PhiloxStream {
 public:
  using result_type = std::uint32_t;

  constexpr explicit PhiloxStream(std::uint64_t seed, std::uint32_t role = 0,
                                  std::uint32_t index = 0) noexcept
      : seed_(seed), role_(role), index_(index) {}

  static constexpr result_type min() noexcept { return 0; }
  static constexpr result_type max() noexcept { return 0xFFFFFFFFU; }

  constexpr result_type operator()() noexcept {
    const auto lane = static_cast<std::size_t>(step_ % 4);
    if (lane == 0) {
      const std::uint64_t block = step_ / 4;
      block_ = philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32U),
                       role_, index_},
                      seed_);
    }
    ++step_;
    return block_[lane];
  }

  /// Uniform in [0, bound), bound > 0 (multiply-shift; bias below bound / 2^64).
  constexpr std::uint64_t below(std::uint64_t bound) noexcept {
    const std::uint64_t high = (*this)();
    const std::uint64_t word = (high << 32U) | (*this)();
    __extension__ using wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<wide>(word) * bound) >> 64U);
  }

  /// Uniform in [0, 1) with 53 bits.
  constexpr double uniform() noexcept {
    const std::uint64_t high = (*this)();
    const std::uint64_t word = (high << 32U) | (*this)();
    return static_cast<double>(word >> 11U) * 0x1.0p-53;
  }

 private:
  std::uint64_t seed_;
  std::uint64_t step_ = 0;
  std::uint32_t role_;
  std::uint32_t index_;
  PhiloxBlock block_{};
};

}  // namespace troupe
