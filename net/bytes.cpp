#include "net/bytes.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

namespace troupe::net {

namespace {

constexpr std::size_t pooled_from = 64U << 10U;
constexpr std::align_val_t alignment{64};

// Sizes are rounded up to 1/4 of a power of two, so that messages of similar size share blocks.
std::size_t size_class(std::size_t size) {
  const std::size_t step = std::max<std::size_t>(std::bit_floor(size) / 4, 4096);
  return (size + step - 1) / step * step;
}

}  // namespace

struct BlockPool::State {
  explicit State(std::size_t limit) : idle_limit(limit) {}
  ~State() {
    for (auto& [size, memory] : idle) {
      ::operator delete(memory, alignment);
    }
  }

  void give_back(std::byte* memory, std::size_t size) noexcept {
    {
      const std::lock_guard lock{mutex};
      if (idle_bytes + size <= idle_limit) {
        try {
          idle.emplace(size, memory);
          idle_bytes += size;
          return;
        } catch (const std::bad_alloc&) {  // falls through to the release
        }
      }
    }
    ::operator delete(memory, alignment);
  }

  const std::size_t idle_limit;
  std::mutex mutex;
  std::multimap<std::size_t, std::byte*> idle;
  std::size_t idle_bytes = 0;
};

BlockPool::BlockPool(std::size_t idle_limit) : state_(std::make_shared<State>(idle_limit)) {}
BlockPool::~BlockPool() = default;

Block BlockPool::allocate(std::size_t size) {
  if (size < pooled_from) {
    const std::size_t capacity = std::max<std::size_t>(size, 64);
    auto* memory = static_cast<std::byte*>(::operator new(capacity, alignment));
    return {
        std::shared_ptr<std::byte>(memory, [](std::byte* p) { ::operator delete(p, alignment); }),
        capacity};
  }
  const std::size_t capacity = size_class(size);
  std::byte* memory = nullptr;
  {
    const std::lock_guard lock{state_->mutex};
    const auto it = state_->idle.find(capacity);
    if (it != state_->idle.end()) {
      memory = it->second;
      state_->idle.erase(it);
      state_->idle_bytes -= capacity;
    }
  }
  if (memory == nullptr) {
    memory = static_cast<std::byte*>(::operator new(capacity, alignment));
  }
  // The deleter shares the state, so blocks may outlive the pool object.
  return {std::shared_ptr<std::byte>(
              memory, [state = state_, capacity](std::byte* p) { state->give_back(p, capacity); }),
          capacity};
}

std::size_t BlockPool::idle_bytes() const {
  const std::lock_guard lock{state_->mutex};
  return state_->idle_bytes;
}

BlockPool& BlockPool::shared() {
  static BlockPool pool;
  return pool;
}

Bytes Bytes::copy_of(std::span<const std::byte> view) {
  if (view.empty()) {
    return {};
  }
  const Block block = BlockPool::shared().allocate(view.size());
  std::memcpy(block.get(), view.data(), view.size());
  return {block.data, {block.get(), view.size()}};
}

bool operator==(const Bytes& a, const Bytes& b) noexcept {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace troupe::net
