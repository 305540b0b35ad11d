#include "net/philox.hpp"

#include <catch2/catch.hpp>

using troupe::philox;

TEST_CASE("philox agrees with the known answers of Random123", "[philox]") {
  // From the kat_vectors file of Random123 1.14: philox4x32 with 10 rounds.
  CHECK(philox({0, 0, 0, 0}, 0) ==
        troupe::PhiloxBlock{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U});
  CHECK(philox({0xffffffffU, 0xffffffffU, 0xffffffffU, 0xffffffffU}, 0xffffffffffffffffULL) ==
        troupe::PhiloxBlock{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU});
  CHECK(philox({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}, 0x299f31d0a4093822ULL) ==
        troupe::PhiloxBlock{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U});
}

TEST_CASE("a philox stream depends on seed, role and index alone", "[philox]") {
  troupe::PhiloxStream a{7, 1, 2};
  troupe::PhiloxStream b{7, 1, 2};
  troupe::PhiloxStream other{7, 1, 3};
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const auto x = a();
    CHECK(x == b());
    differs = differs || x != other();
  }
  CHECK(differs);
  for (int i = 0; i < 1000; ++i) {
    CHECK(a.below(10) < 10);
    const double u = a.uniform();
    CHECK((u >= 0.0 && u < 1.0));
  }
}
