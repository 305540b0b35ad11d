// Why: bulk payloads are handed on, never copied: from the socket into a block, from there into a
// message, to any number of readers. `Bytes` is an immutable, shared view that keeps its block alive;
// blocks of 64 kB and more are recycled, because fresh memory costs 30 times a warm copy.
// Thread-safety: `Bytes` is a value (immutable content); `BlockPool` may be used from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace troupe::net {

/// A mutable block of memory, 64-byte aligned, whose last owner gives it back to the pool.
struct Block {
  std::shared_ptr<std::byte> data;
  std::size_t capacity = 0;

  std::byte* get() const noexcept { return data.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(data); }
};

/// Recycles large blocks, up to a limit of idle memory.
class BlockPool {
 public:
  /// `idle_limit`: bytes kept for reuse; what exceeds it is freed.
  explicit BlockPool(std::size_t idle_limit = std::size_t{256} << 20U);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// A block of at least `size` bytes, content undefined. Throws std::bad_alloc.
  Block allocate(std::size_t size);

  std::size_t idle_bytes() const;

  /// The process-wide pool.
  static BlockPool& shared();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Immutable bytes with shared ownership.
class Bytes {
 public:
  Bytes() = default;

  /// Takes over `view`, kept alive by `owner`.
  Bytes(std::shared_ptr<const void> owner, std::span<const std::byte> view)
      : owner_(std::move(owner)), view_(view) {}

  /// Copies `view` into a block of the shared pool.
  static Bytes copy_of(std::span<const std::byte> view);

  const std::byte* data() const noexcept { return view_.data(); }
  std::size_t size() const noexcept { return view_.size(); }
  bool empty() const noexcept { return view_.empty(); }
  std::span<const std::byte> span() const noexcept { return view_; }
  const std::shared_ptr<const void>& owner() const noexcept { return owner_; }

  /// A part of these bytes that shares the ownership. `offset + count <= size()`.
  Bytes slice(std::size_t offset, std::size_t count) const {
    return {owner_, view_.subspan(offset, count)};
  }

  friend bool operator==(const Bytes& a, const Bytes& b) noexcept;

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> view_;
};

}  // namespace troupe::net
