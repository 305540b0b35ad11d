// Precompiled for net/ and its tests: the headers that dominate compile time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <boost/asio.hpp>
#include <caf/all.hpp>
#include <spdlog/spdlog.h>
