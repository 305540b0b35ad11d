// Why: turns a stream of bytes into checked frames without copying where it matters: small frames are
// handed out in place from the read buffer, the data of fragments is read straight into the message
// that it belongs to.
// Thread-safety: belongs to one thread (the executor of its stream).
#pragma once

#include "net/bytes.hpp"
#include "net/stream.hpp"
#include "net/wire.hpp"

namespace troupe::net {

/// Receives checked frames. An error ends the connection.
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;

  /// Any frame but a fragment. `payload` is valid during the call only.
  virtual error on_frame(const FrameHeader& header, std::span<const std::byte> payload) = 0;

  /// The header of a fragment has arrived: where should its `size` bytes of data go? A null pointer
  /// discards them (a duplicate). The place must stay valid until `on_fragment` or the reader's end.
  virtual expected<std::byte*> fragment_target(const FrameHeader& header,
                                               const FragmentHeader& fragment,
                                               std::size_t size) = 0;

  /// All data of the fragment is in place and its checksum is right.
  virtual error on_fragment(const FrameHeader& header, const FragmentHeader& fragment,
                            std::size_t size) = 0;
};

class FrameReader {
 public:
  FrameReader(const FrameLimits& limits, FrameHandler& handler);

  /// Raises the limits, after the handshake.
  void set_limits(const FrameLimits& limits) { limits_ = limits; }

  /// Where the next bytes should be placed; never empty.
  MutableBuffer window();

  /// `count` bytes were placed at the start of the window. An error means that the stream is broken
  /// beyond repair and must be closed; the reader must not be used afterwards.
  error consume(std::size_t count);

 private:
  error parse();
  error parse_header(bool& progress);
  error parse_payload(bool& progress);
  error take_fragment_data(std::span<const std::byte> data);
  error finish_fragment();
  void compact();
  bool checked() const noexcept { return (header_.flags & frame_flags::unchecked) == 0; }

  enum class State { header, payload, fragment_header, fragment_data };

  FrameLimits limits_;
  FrameHandler& handler_;
  Block buffer_;
  std::size_t begin_ = 0;  // unread bytes of buffer_ are [begin_, end_)
  std::size_t end_ = 0;
  bool window_is_target_ = false;
  bool expect_fragment_ = false;

  State state_ = State::header;
  FrameHeader header_;
  FragmentHeader fragment_;
  std::byte* target_ = nullptr;    // next byte of fragment data, null when it is discarded
  std::size_t fragment_left_ = 0;  // data bytes of the current fragment still to come
  ChecksumStream check_;
  Block discard_;
};

}  // namespace troupe::net
