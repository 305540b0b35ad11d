// A link under a hostile peer: the input is a script of what that peer does. Most frames get right
// checksums and sequence numbers, so that the fuzzer reaches what lies behind them; others are raw.
// The link may end the connection, after which the peer comes back, but never crash, leak, hand out
// bytes out of bounds, or let more than its credit in.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <caf/system_messages.hpp>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/stubs/logging.h>

#include "net/link.hpp"
#include "net/message_codec.hpp"

namespace fuzz {

struct Parcel {
  std::uint32_t number = 0;
  std::string text;
  std::vector<double> values;
  caf::actor handle;
  caf::message inner;
};
template <class Inspector>
auto inspect(Inspector& f, Parcel& x) {
  return f(x.number, x.text, x.values, x.handle, x.inner);
}

}  // namespace fuzz

TROUPE_ALLOW_MESSAGE(fuzz::Parcel);

namespace {

using namespace troupe;
using namespace troupe::net;

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

constexpr std::size_t window = std::size_t{64} << 10U;

/// Virtual time, one thread.
class ManualExecutor final : public Executor {
 public:
  TimePoint now() const noexcept override { return now_; }
  void post(std::function<void()> fn) override { posted_.push_back(std::move(fn)); }
  TimerId schedule(Duration delay, std::function<void()> fn) override {
    timers_.emplace(++last_, std::pair{now_ + delay, std::move(fn)});
    return last_;
  }
  void cancel(TimerId id) override { timers_.erase(id); }
  bool on_thread() const noexcept override { return true; }

  void run(Duration step) {
    now_ += step;
    for (int round = 0; round < 100 && !posted_.empty(); ++round) {
      const auto fn = std::move(posted_.front());
      posted_.pop_front();
      fn();
    }
    for (auto it = timers_.begin(); it != timers_.end();) {
      if (it->second.first > now_) {
        ++it;
        continue;
      }
      const auto fn = std::move(it->second.second);
      timers_.erase(it);
      fn();
      it = timers_.begin();
    }
  }

 private:
  TimePoint now_{};
  TimerId last_ = 0;
  std::deque<std::function<void()>> posted_;
  std::map<TimerId, std::pair<TimePoint, std::function<void()>>> timers_;
};

/// Takes as much as it is told to.
class Sink final : public Stream {
 public:
  void start(std::shared_ptr<StreamSink>) override {}
  std::size_t write(std::span<const ConstBuffer> buffers) override {
    std::size_t total = 0;
    unsigned sum = 0;
    for (const auto& buffer : buffers) {
      total += buffer.size();
      for (const auto byte : buffer) {  // all of it must be readable
        sum += static_cast<unsigned>(byte);
      }
    }
    checked_ = sum;
    const std::size_t taken = std::min(total, room);
    room -= taken;
    return taken;
  }
  void close(error) override {}
  std::string peer_address() const override { return "fuzz"; }

  std::size_t room = std::size_t{1} << 20U;

 private:
  volatile unsigned checked_ = 0;
};

class NoHandles final : public HandleCodec {
 public:
  expected<WireActor> export_actor(const caf::strong_actor_ptr&) override { return WireActor{}; }
  expected<caf::strong_actor_ptr> import_actor(const WireActor& actor) override {
    if (actor.id % 2 != 0) {
      return troupe::fail(ec::node_unreachable, "not reachable");
    }
    return caf::strong_actor_ptr{};
  }
};

const TypeRegistry& types() {
  static const auto registry = [] {
    auto filled = std::make_unique<TypeRegistry>();
    require(filled->add<fuzz::Parcel>("fuzz.parcel").has_value());
    require(filled->add<google::protobuf::Struct>("fuzz.struct").has_value());
    filled->freeze();
    google::protobuf::SetLogHandler(nullptr);
    return filled;
  }();
  return *registry;
}

/// Decodes messages as a peer does, and keeps the credit of some.
class Receiver final : public LinkHandler {
 public:
  void on_record(const Record& record, CreditToken token) override {
    require(record.body.size() == record.header.size);
    require(reinterpret_cast<std::uintptr_t>(record.body.data()) % 8 == 0 || !record.owner);
    if (record.header.kind == RecordKind::message) {
      NoHandles handles;
      DecodeLimits limits;
      limits.allowance = std::uint64_t{1} << 16U;
      const auto message = decode_message(types(), record.body, record.owner, &handles, limits);
      if (message && record.owner) {
        kept_messages.push_back(*message);  // views into the block outlive the call
      }
    }
    if (record.header.mid % 2 == 1) {
      held += sizeof(RecordHeader) + padded(record.header.size);
      tokens.push_back(std::move(token));
    }
    // What is held on to was let in by credit; a last record may complete what was lent.
    require(held <= 2 * (2 * window + max_message + 64));
  }
  void on_writable(Lane) override {}
  void on_state(LinkState) override {}
  void on_down(const error&) override { down = true; }

  static constexpr std::size_t max_message = std::size_t{128} << 10U;
  std::deque<CreditToken> tokens;
  std::vector<caf::message> kept_messages;
  std::size_t held = 0;
  bool down = false;
};

/// The script.
class Script {
 public:
  explicit Script(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  template <class T>
  T number() {
    T value{};
    const std::size_t count = std::min(sizeof(T), rest_.size());
    std::memcpy(&value, rest_.data(), count);
    rest_ = rest_.subspan(count);
    return value;
  }
  std::span<const std::byte> bytes(std::size_t wanted) {
    const auto part = rest_.first(std::min(wanted, rest_.size()));
    rest_ = rest_.subspan(part.size());
    return part;
  }

 private:
  std::span<const std::byte> rest_;
};

class Game final : public FrameHandler {
 public:
  explicit Game(std::span<const std::byte> input) : script_(input) {
    LinkConfig config;
    config.max_fragment = 8192;
    config.coalesce = 4096;
    config.large_record = 4096;
    config.queue_bytes = {window, window};
    config.window_bytes = {window, window};
    config.max_message = Receiver::max_message;
    link_ = std::make_shared<Link>(executor_, config, NodeId{1, 1}, NodeId{2, 2}, 77);
    link_->set_handler(receiver_);
    connect(0);
  }

  ~Game() override { link_->fail({ec::closed, "over"}); }

  void play() {
    for (int step = 0; step < 400 && !script_.empty(); ++step) {
      turn(script_.number<std::uint8_t>());
    }
    executor_.run(std::chrono::seconds{1});
  }

  // FrameHandler, as a connection with a link does it
  error on_frame(const FrameHeader& header, std::span<const std::byte> payload) override {
    return link_->on_frame(header, payload);
  }
  expected<std::byte*> fragment_target(const FrameHeader& header, const FragmentHeader& fragment,
                                       std::size_t size) override {
    return link_->fragment_target(header, fragment, size);
  }
  error on_fragment(const FrameHeader& header, const FragmentHeader& fragment,
                    std::size_t size) override {
    return link_->on_fragment(header, fragment, size);
  }

 private:
  void turn(std::uint8_t what) {
    const auto lane = static_cast<std::uint8_t>((what >> 4U) & 1U);
    switch (what & 15U) {
      case 0:
      case 1:
      case 2:
        send_records(lane);
        break;
      case 3:
      case 4:
        send_fragment(lane, true);
        break;
      case 5:
        send_fragment(lane, false);
        break;
      case 6: {  // a frame of any kind with right checksums
        const auto fields = script_.number<std::uint32_t>();
        header_.type = static_cast<FrameType>(fields & 15U);
        header_.lane = static_cast<std::uint8_t>((fields >> 4U) & 3U);
        header_.sequence = next_ + ((fields >> 6U) & 3U) - 1;
        send_frame(script_.bytes((fields >> 8U) & 0xFFU), 0);
        break;
      }
      case 7:  // a header with the right check that lies about the length
        header_.type = static_cast<FrameType>(4U + (what >> 5U) % 3U);
        header_.lane = lane;
        header_.sequence = next_;
        send_frame(script_.bytes(16), script_.number<std::uint32_t>());
        break;
      case 8:
        feed(script_.bytes(script_.number<std::uint8_t>()));
        break;
      case 9:  // acknowledges, perhaps what was never sent
        header_.ack =
            what >= 0xF0U ? script_.number<std::uint64_t>() : script_.number<std::uint8_t>();
        header_.credit.fill(script_.number<std::uint32_t>());
        header_.type = FrameType::ack;
        header_.sequence = 0;
        send_frame({}, 0);
        break;
      case 10:
      case 11:
        send_own(lane);
        break;
      case 12:
        executor_.run(std::chrono::milliseconds{script_.number<std::uint8_t>()});
        break;
      case 13:
        receiver_->tokens.clear();
        receiver_->held = 0;
        break;
      case 14:
        stream_->room = script_.number<std::uint16_t>();
        link_->on_stream_writable(stream_.get());
        break;
      default:
        link_->detach(stream_.get());
        connect(script_.number<std::uint8_t>());
    }
  }

  // A new connection, on which the peer says to have received `received`.
  void connect(std::uint64_t received) {
    if (receiver_->down) {
      return;
    }
    stream_ = std::make_shared<Sink>();
    reader_ = std::make_unique<FrameReader>(link_->frame_limits(), *this);
    Hello own;
    link_->describe(own);
    next_ = own.received + 1;
    Hello peer;
    peer.node = NodeId{2, 2};
    peer.session = 5;
    peer.received = received;
    peer.credit = {4096, 4096};
    peer.max_message = 1U << 16U;
    peer.max_frame = 1024;
    if (link_->attach(stream_, peer, own.connection, NodeId{2, 2})) {
      link_->fail({ec::malformed, "as a link manager does"});
    }
  }

  void send_records(std::uint8_t lane) {
    const auto count = 1 + script_.number<std::uint8_t>() % 4U;
    std::vector<std::byte> payload;
    for (unsigned i = 0; i < count; ++i) {
      const auto fields = script_.number<std::uint32_t>();
      const auto body = script_.bytes((fields >> 16U) & 0x3FFU);
      append_record(payload, fields, body);
    }
    header_.type = FrameType::records;
    header_.lane = lane;
    header_.sequence = next_++;
    send_frame(payload, 0);
  }

  static void append_record(std::vector<std::byte>& out, std::uint32_t fields,
                            std::span<const std::byte> body) {
    RecordHeader header;
    header.size = static_cast<std::uint32_t>(body.size());
    header.kind = static_cast<RecordKind>(fields & 15U);
    header.flags = static_cast<std::uint8_t>((fields >> 4U) & 3U);
    header.mid = (fields >> 6U) & 1U;
    if ((fields >> 27U) == 31U) {
      header.size = fields;  // not the truth
    }
    const auto at = out.size();
    out.resize(at + sizeof header + padded(body.size()));
    write_pod(out.data() + at, header);
    std::copy(body.begin(), body.end(),
              out.begin() + static_cast<std::ptrdiff_t>(at + sizeof header));
  }

  // A part of a record that is put together at the other end; `honest`: where it belongs.
  void send_fragment(std::uint8_t lane, bool honest) {
    const auto size = 1U + script_.number<std::uint16_t>() % 8192U;
    Outgoing& out = outgoing_[lane];
    FragmentHeader fragment;
    if (honest) {
      if (out.offset >= out.record.size()) {
        const auto fields = script_.number<std::uint32_t>();
        out = {};
        std::vector<std::byte> body(script_.number<std::uint16_t>());
        const auto start = script_.bytes(256);
        body.resize(std::max(body.size(), start.size()));
        std::copy(start.begin(), start.end(), body.begin());
        append_record(out.record, fields, body);
      }
      fragment = {out.record.size(), out.offset};
    } else {
      fragment = {script_.number<std::uint64_t>(), script_.number<std::uint64_t>()};
    }
    std::vector<std::byte> payload(sizeof fragment);
    write_pod(payload.data(), fragment);
    const auto from = std::min(out.offset, out.record.size());
    const auto part = std::min<std::size_t>(size, out.record.size() - from);
    payload.insert(payload.end(), out.record.begin() + static_cast<std::ptrdiff_t>(from),
                   out.record.begin() + static_cast<std::ptrdiff_t>(from + part));
    if (honest) {
      out.offset += part;
    } else {
      payload.resize(sizeof fragment + size);
    }
    header_.type = FrameType::fragment;
    header_.lane = lane;
    header_.sequence = next_++;
    send_frame(payload, 0);
  }

  void send_frame(std::span<const std::byte> payload, std::uint32_t length) {
    header_.length = length != 0 ? length : static_cast<std::uint32_t>(payload.size());
    header_.payload_check = checksum(payload);
    std::vector<std::byte> bytes(sizeof header_);
    write_frame_header(bytes.data(), header_);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    feed(bytes);
  }

  // Through the reader in pieces; a connection that ends is made anew.
  void feed(std::span<const std::byte> bytes) {
    while (!bytes.empty() && !receiver_->down) {
      const auto place = reader_->window();
      require(!place.empty());
      const std::size_t count = std::min({place.size(), bytes.size(), 1 + bytes.size() * 2 / 3});
      std::memcpy(place.data(), bytes.data(), count);
      bytes = bytes.subspan(count);
      if (reader_->consume(count)) {
        link_->detach(stream_.get());
        header_.ack = 0;
        for (auto& lane : outgoing_) {
          lane.offset = 0;  // begins anew, which the link may take or not
        }
        connect(0);
        return;
      }
    }
    link_->after_batch();
  }

  void send_own(std::uint8_t lane) {
    const std::vector<std::byte> body(script_.number<std::uint16_t>() % 20'000U);
    const ConstBuffer piece{body};
    RecordHeader header;
    link_->send(static_cast<Lane>(lane), header, {&piece, 1}, nullptr,
                static_cast<SendForce>(script_.number<std::uint8_t>() % 3U));
    require(link_->queued_bytes(static_cast<Lane>(lane)) <= std::size_t{400} * 20'100U);
  }

  struct Outgoing {
    std::vector<std::byte> record;
    std::size_t offset = 0;
  };

  Script script_;
  ManualExecutor executor_;
  std::shared_ptr<Receiver> receiver_ = std::make_shared<Receiver>();
  std::shared_ptr<Link> link_;
  std::shared_ptr<Sink> stream_;
  std::unique_ptr<FrameReader> reader_;
  FrameHeader header_;
  std::array<Outgoing, lane_count> outgoing_;
  std::uint64_t next_ = 1;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Game game{{reinterpret_cast<const std::byte*>(data), size}};
  game.play();
  return 0;
}
