// Why: a mailbox that a remote node fills must not grow without a limit. Each message that arrives
// over a link holds a token for its bytes until its handler has run; only then may the sender's node
// send as many again.
// Thread-safety: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

namespace troupe::net {

/// Told when the bytes of a received message have been consumed.
class CreditAccount {
 public:
  virtual ~CreditAccount() = default;

  /// Cheap and non-blocking: called from destructors of mailbox elements on any thread.
  virtual void release(std::uint32_t lane, std::uint64_t bytes) noexcept = 0;
};

/// Releases its bytes when it goes out of scope.
class CreditToken {
 public:
  CreditToken() = default;
  CreditToken(std::shared_ptr<CreditAccount> account, std::uint32_t lane, std::uint64_t bytes)
      : account_(std::move(account)), bytes_(bytes), lane_(lane) {}
  CreditToken(CreditToken&&) = default;
  CreditToken& operator=(CreditToken&& other) noexcept {
    std::swap(account_, other.account_);
    std::swap(bytes_, other.bytes_);
    std::swap(lane_, other.lane_);
    return *this;
  }
  CreditToken(const CreditToken&) = delete;
  CreditToken& operator=(const CreditToken&) = delete;
  ~CreditToken() {
    if (account_) {
      account_->release(lane_, bytes_);
    }
  }

 private:
  std::shared_ptr<CreditAccount> account_;
  std::uint64_t bytes_ = 0;
  std::uint32_t lane_ = 0;
};

}  // namespace troupe::net
