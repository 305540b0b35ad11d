#include <catch2/catch.hpp>

#include <cmath>

#include "net/phi.hpp"

using namespace troupe::net;
using namespace std::chrono_literals;

TEST_CASE("phi: known values of the normal tail") {
  // Upper tail probabilities of the standard normal distribution (tables).
  CHECK(phi_of(0.0) == Approx(0.301029996).epsilon(1e-8));
  CHECK(phi_of(1.0) == Approx(-std::log10(0.158655253931)).epsilon(1e-9));
  CHECK(phi_of(2.0) == Approx(-std::log10(0.022750131948)).epsilon(1e-9));
  CHECK(phi_of(3.0) == Approx(-std::log10(0.001349898032)).epsilon(1e-9));
  CHECK(phi_of(6.0) == Approx(-std::log10(9.865876450e-10)).epsilon(1e-9));
  CHECK(phi_of(10.0) == Approx(-std::log10(7.619853024e-24)).epsilon(1e-9));
  CHECK(phi_of(30.0) == Approx(-std::log10(4.906713927e-198)).epsilon(1e-8));
  // 3.655893541e-350 is below what a double holds.
  CHECK(phi_of(40.0) == Approx(350.0 - std::log10(3.655893541)).epsilon(1e-7));
  CHECK(phi_of(-50.0) == 0.0);
  CHECK(std::isfinite(phi_of(1e9)));
}

TEST_CASE("phi: the tail is continuous where the formula changes") {
  double last = 0.0;
  for (double x = 27.0; x < 30.0; x += 0.01) {
    const double value = phi_of(x);
    CHECK(value > last);
    if (last > 0.0) {
      CHECK(value - last < 0.15);
    }
    last = value;
  }
}

TEST_CASE("phi: regular heartbeats, then silence") {
  PhiConfig config;
  config.min_deviation = 10ms;
  PhiEstimator estimator(config);
  TimePoint now{};
  CHECK(estimator.phi(now + 1h) == 0.0);
  // Alternately 90 ms and 110 ms: mean 100 ms, deviation 10 ms.
  estimator.heartbeat(now);
  for (int i = 0; i < 50; ++i) {
    now += i % 2 == 0 ? 90ms : 110ms;
    estimator.heartbeat(now);
  }
  CHECK(estimator.samples() == 50);
  CHECK(estimator.mean() == Approx(1e8));
  CHECK(estimator.deviation() == Approx(1e7));
  CHECK(estimator.phi(now) == Approx(0.0).margin(1e-6));
  CHECK(estimator.phi(now + 100ms) == Approx(phi_of(0.0)));
  CHECK(estimator.phi(now + 130ms) == Approx(phi_of(3.0)));
  CHECK(estimator.phi(now + 200ms) == Approx(phi_of(10.0)));
  CHECK(estimator.phi(now + 1s) > 1000.0);
  estimator.heartbeat(now + 1s);
  CHECK(estimator.phi(now + 1s) < 0.4);
}

TEST_CASE("phi: window, minimum deviation, pause, outages") {
  PhiConfig config;
  config.window = 4;
  config.min_deviation = 20ms;
  config.acceptable_pause = 500ms;
  config.longest_sample = 1s;
  PhiEstimator estimator(config);
  TimePoint now{};
  CHECK(estimator.mean() == Approx(250e6));
  estimator.heartbeat(now);
  for (int i = 0; i < 10; ++i) {
    estimator.heartbeat(now += i < 6 ? 900ms : 100ms);
  }
  CHECK(estimator.samples() == 4);
  CHECK(estimator.mean() == Approx(1e8));
  CHECK(estimator.phi(now + 600ms) == Approx(phi_of(0.0)));
  CHECK(estimator.phi(now + 640ms) == Approx(phi_of(2.0)));
  estimator.heartbeat(now += 30s);
  CHECK(estimator.mean() == Approx(1e8));
  estimator.restart(now += 10s);
  CHECK(estimator.phi(now + 600ms) == Approx(phi_of(0.0)));
  // Backwards is "at once".
  estimator.heartbeat(now - 5s);
  CHECK(estimator.mean() == Approx(75e6));
}
