#include "net/frame_reader.hpp"

#include <algorithm>
#include <cstring>

namespace troupe::net {

namespace {

constexpr std::size_t discard_size = std::size_t{64} << 10U;
// After a fragment the next frame is probably one too: read little more than its headers into the
// buffer, so that its data can go straight to its place.
constexpr std::size_t small_window = 1024;

}  // namespace

FrameReader::FrameReader(const FrameLimits& limits, FrameHandler& handler)
    : limits_(limits), handler_(handler) {}

MutableBuffer FrameReader::window() {
  if (state_ == State::fragment_data && begin_ == end_) {
    window_is_target_ = true;
    if (target_ != nullptr) {
      return {target_, fragment_left_};
    }
    if (!discard_) {
      discard_ = BlockPool::shared().allocate(discard_size);
    }
    return {discard_.get(), std::min(fragment_left_, discard_.capacity)};
  }
  window_is_target_ = false;
  // Room for the largest frame that is handed out in place, whatever was read before it.
  const std::size_t needed = sizeof(FrameHeader) + limits_.max_payload;
  if (!buffer_ || buffer_.capacity < needed) {
    Block larger = BlockPool::shared().allocate(needed);
    if (end_ > begin_) {
      std::memcpy(larger.get(), buffer_.get() + begin_, end_ - begin_);
    }
    end_ -= begin_;
    begin_ = 0;
    buffer_ = std::move(larger);
  }
  compact();
  const std::size_t room = buffer_.capacity - end_;
  return {buffer_.get() + end_,
          expect_fragment_ && state_ != State::payload ? std::min(room, small_window) : room};
}

void FrameReader::compact() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (buffer_.capacity - begin_ < sizeof(FrameHeader) + limits_.max_payload) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
}

error FrameReader::consume(std::size_t count) {
  if (window_is_target_) {
    const std::byte* from = target_ != nullptr ? target_ : discard_.get();
    if (checked()) {
      check_.update({from, count});
    }
    if (target_ != nullptr) {
      target_ += count;
    }
    fragment_left_ -= count;
    return fragment_left_ == 0 ? finish_fragment() : error{};
  }
  end_ += count;
  return parse();
}

error FrameReader::parse() {
  bool progress = true;
  while (progress) {
    progress = false;
    switch (state_) {
      case State::header:
        if (auto err = parse_header(progress)) {
          return err;
        }
        break;
      case State::payload:
      case State::fragment_header:
        if (auto err = parse_payload(progress)) {
          return err;
        }
        break;
      case State::fragment_data: {
        const std::size_t have = std::min(end_ - begin_, fragment_left_);
        if (have > 0) {
          if (auto err = take_fragment_data({buffer_.get() + begin_, have})) {
            return err;
          }
          progress = true;
        }
        break;
      }
    }
  }
  return {};
}

error FrameReader::parse_header(bool& progress) {
  if (end_ - begin_ < sizeof(FrameHeader)) {
    return {};
  }
  auto header = read_frame_header(buffer_.get() + begin_, limits_);
  if (!header) {
    return header.error();
  }
  header_ = *header;
  begin_ += sizeof(FrameHeader);
  state_ = header_.type == FrameType::fragment ? State::fragment_header : State::payload;
  progress = true;
  return {};
}

error FrameReader::parse_payload(bool& progress) {
  if (state_ == State::payload) {
    if (end_ - begin_ < header_.length) {
      return {};
    }
    const std::span<const std::byte> payload{buffer_.get() + begin_, header_.length};
    if (checked() && checksum(payload) != header_.payload_check) {
      return {ec::malformed, "frame payload is damaged (checksum does not match)"};
    }
    begin_ += header_.length;
    state_ = State::header;
    expect_fragment_ = false;
    progress = true;
    return handler_.on_frame(header_, payload);
  }
  if (end_ - begin_ < sizeof(FragmentHeader)) {
    return {};
  }
  fragment_ = read_pod<FragmentHeader>(buffer_.get() + begin_);
  const std::size_t size = header_.length - sizeof(FragmentHeader);
  if (fragment_.total > limits_.max_message + sizeof(RecordHeader) + 8 ||
      fragment_.total < sizeof(RecordHeader) || fragment_.offset > fragment_.total ||
      size > fragment_.total - fragment_.offset) {
    return {ec::limit_exceeded, "fragment of " + std::to_string(size) + " bytes at " +
                                    std::to_string(fragment_.offset) + " of a message of " +
                                    std::to_string(fragment_.total) + " bytes is out of bounds"};
  }
  auto target = handler_.fragment_target(header_, fragment_, size);
  if (!target) {
    return target.error();
  }
  check_.reset();
  check_.update({buffer_.get() + begin_, sizeof(FragmentHeader)});
  begin_ += sizeof(FragmentHeader);
  target_ = *target;
  fragment_left_ = size;
  state_ = State::fragment_data;
  progress = true;
  return {};
}

error FrameReader::take_fragment_data(std::span<const std::byte> data) {
  if (checked()) {
    check_.update(data);
  }
  if (target_ != nullptr) {
    std::memcpy(target_, data.data(), data.size());
    target_ += data.size();
  }
  begin_ += data.size();
  fragment_left_ -= data.size();
  return fragment_left_ == 0 ? finish_fragment() : error{};
}

error FrameReader::finish_fragment() {
  state_ = State::header;
  target_ = nullptr;
  expect_fragment_ = true;
  if (checked() && check_.value() != header_.payload_check) {
    return {ec::malformed, "fragment is damaged (checksum does not match)"};
  }
  return handler_.on_fragment(header_, fragment_, header_.length - sizeof(FragmentHeader));
}

}  // namespace troupe::net
