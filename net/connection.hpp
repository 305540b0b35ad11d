// Why: one connection between two nodes, from the first byte after the upgrade to its end: the
// handshake first, then frames for the link it was attached to. Internal to the link manager.
// Thread-safety: the executor's thread.
#pragma once

#include <memory>

#include "net/frame_reader.hpp"
#include "net/handshake.hpp"
#include "net/link_manager.hpp"
#include "net/stream.hpp"

namespace troupe::net {

class Connection final : public StreamSink,
                         public FrameHandler,
                         public std::enable_shared_from_this<Connection> {
 public:
  /// `peer` is who the other side claimed to be in the upgrade. A dialled connection carries the dialled
  /// address and the handler that waits for it.
  Connection(std::weak_ptr<LinkManager> manager, Executor& executor, OpenStream opened,
             bool dialled, std::string address, LinkManager::ConnectHandler done);
  ~Connection() override;

  /// Starts reading; a dialler says `hello` at once. Without an end of the handshake within `timeout`
  /// the connection is closed.
  void start(const Hello& self, Duration timeout);

  const std::shared_ptr<Stream>& stream() const noexcept { return stream_; }
  const NodeId& peer() const noexcept { return peer_; }
  const std::string& address() const noexcept { return address_; }

  /// Sends a whole handshake frame. False when the stream does not take it.
  bool send_frame(const std::vector<std::byte>& frame);

  // StreamSink
  MutableBuffer read_window() override;
  void on_bytes(std::size_t count) override;
  void on_writable() override;
  void on_closed(const error& reason) override;

  // FrameHandler
  error on_frame(const FrameHeader& header, std::span<const std::byte> payload) override;
  expected<std::byte*> fragment_target(const FrameHeader& header, const FragmentHeader& fragment,
                                       std::size_t size) override;
  error on_fragment(const FrameHeader& header, const FragmentHeader& fragment,
                    std::size_t size) override;

 private:
  enum class Phase : std::uint8_t { hello, welcome, attached, dead };

  error on_hello(std::span<const std::byte> payload);
  error on_welcome(std::span<const std::byte> payload);
  error refuse(error reason);
  void become_attached(std::shared_ptr<Link> link);
  void end(const error& reason);
  void finish_handshake();

  std::weak_ptr<LinkManager> manager_;
  Executor& executor_;
  std::shared_ptr<Stream> stream_;
  NodeId peer_;
  std::string address_;
  LinkManager::ConnectHandler done_;
  Hello self_;
  std::shared_ptr<Link> link_;
  TimerId timer_ = 0;
  Phase phase_;
  FrameReader reader_;
  std::array<std::byte, 64> scratch_{};
};

}  // namespace troupe::net
