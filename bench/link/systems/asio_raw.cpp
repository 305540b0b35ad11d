// Raw Boost.Asio over TCP: the ceiling for anything built on it. One I/O thread per process, no
// actors, no types; but whole messages, in order, and the answers checked.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <boost/asio.hpp>

#include "link/system.hpp"
#include "link/systems/asio_frames.hpp"

namespace troupe::bench {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

/// Small frames are collected up to this many bytes before they are written.
constexpr std::size_t batch_bytes = std::size_t{256} << 10U;

/// Reads frames and writes whatever has gathered meanwhile; one write at a time.
class Connection {
 public:
  explicit Connection(tcp::socket socket) : socket_(std::move(socket)) {
    boost::system::error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
  }

  std::function<void(const Frame&)> on_frame;
  /// The output has been handed to the kernel; more may be appended.
  std::function<void()> on_drained;
  std::function<void(const std::string&)> on_end;

  std::vector<std::byte>& output() { return output_; }

  void read() {
    const auto window = reader_.window();
    socket_.async_read_some(asio::buffer(window.data(), window.size()),
                            [this](const boost::system::error_code& ec, std::size_t count) {
                              if (ec) {
                                on_end("read failed: " + ec.message());
                                return;
                              }
                              reader_.commit(count);
                              while (const auto frame = reader_.next()) {
                                on_frame(*frame);
                              }
                              if (!reader_.healthy()) {
                                on_end("the peer sent an impossible length");
                                return;
                              }
                              flush();
                              read();
                            });
  }

  /// Starts to write the output, unless a write is under way (then it follows).
  void flush() {
    if (writing_ || output_.empty()) {
      return;
    }
    writing_ = true;
    std::swap(output_, in_flight_);
    asio::async_write(socket_, asio::buffer(in_flight_),
                      [this](const boost::system::error_code& ec, std::size_t) {
                        in_flight_.clear();
                        written(ec);
                      });
  }

  /// Writes `buffers`, which stay valid until `on_drained`, without copying.
  template <class Buffers>
  void write_directly(const Buffers& buffers) {
    writing_ = true;
    asio::async_write(socket_, buffers,
                      [this](const boost::system::error_code& ec, std::size_t) { written(ec); });
  }

 private:
  void written(const boost::system::error_code& ec) {
    writing_ = false;
    if (ec) {
      on_end("write failed: " + ec.message());
      return;
    }
    if (on_drained) {
      on_drained();
    }
    flush();
  }

  tcp::socket socket_;
  FrameReader reader_;
  std::vector<std::byte> output_;
  std::vector<std::byte> in_flight_;
  bool writing_ = false;
};

struct Totals {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
};

class AsioRaw final : public System {
 public:
  ~AsioRaw() override {
    context_.stop();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  expected<std::uint16_t> start_server() override {
    boost::system::error_code ec;
    const tcp::endpoint local{asio::ip::address_v4::loopback(), 0};
    acceptor_.open(local.protocol(), ec);
    if (!ec) {
      acceptor_.bind(local, ec);
    }
    if (!ec) {
      acceptor_.listen(1, ec);
    }
    if (ec) {
      return fail(ec::system_error, "listen failed: " + ec.message());
    }
    acceptor_.async_accept([this](const boost::system::error_code& failed, tcp::socket socket) {
      if (!failed) {
        serve(std::move(socket));
      }
    });
    thread_ = std::thread([this] { context_.run(); });
    return acceptor_.local_endpoint().port();
  }

  expected<void> connect(std::uint16_t port) override {
    tcp::socket socket{context_};
    boost::system::error_code ec;
    socket.connect({asio::ip::address_v4::loopback(), port}, ec);
    if (ec) {
      return fail(ec::node_unreachable, "connect failed: " + ec.message());
    }
    connection_ = std::make_unique<Connection>(std::move(socket));
    connection_->on_end = [this](const std::string& reason) { end(reason); };
    connection_->on_frame = [this](const Frame& frame) { on_frame_(frame); };
    connection_->read();
    return {};
  }

  expected<Timing> round_trips(std::size_t count) override { return request(count, 1, true); }

  expected<Timing> pipelined(std::size_t count, std::size_t window) override {
    return request(count, window, false);
  }

  expected<Timing> one_way(std::size_t count) override { return send(count, small_body); }

  expected<Timing> bulk(Payload, std::size_t size, std::size_t count) override {
    return send(count, size);
  }

 private:
  /// The server's side: echo requests, count notes.
  void serve(tcp::socket socket) {
    connection_ = std::make_unique<Connection>(std::move(socket));
    connection_->on_end = [](const std::string&) {};
    connection_->on_frame = [this](const Frame& frame) {
      auto& output = connection_->output();
      if (frame.header.kind == FrameKind::request) {
        append_frame(output, FrameKind::request, frame.header.sequence, frame.body);
      } else if (frame.header.kind == FrameKind::note) {
        ++totals_.count;
        totals_.bytes += frame.body.size();
      } else if (frame.header.kind == FrameKind::finish) {
        append_frame(output, FrameKind::counted, totals_.count,
                     std::as_bytes(std::span(&totals_.bytes, 1)));
        totals_ = {};
      }
    };
    connection_->read();
  }

  void end(std::string reason) {
    failure_ = std::move(reason);
    context_.stop();
  }

  /// Runs the loop on this thread until a handler stops it, at most `job_limit`.
  expected<Timing> run(Timing timing, Clock::time_point start) {
    context_.restart();
    context_.run_for(job_limit);
    timing.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    connection_->on_drained = nullptr;
    on_frame_ = [](const Frame&) {};
    if (!failure_.empty()) {
      return fail(ec::system_error, failure_);
    }
    if (!std::exchange(complete_, false)) {
      return fail(ec::timeout, "the job did not end in time; is the machine overloaded?");
    }
    return timing;
  }

  void complete() {
    complete_ = true;
    context_.stop();
  }

  expected<Timing> request(std::size_t count, std::size_t window, bool timed) {
    const std::vector<std::byte> body(small_body, std::byte{'r'});
    std::vector<Clock::time_point> sent_at(timed ? count : 0);
    Timing timing;
    timing.latencies_us.reserve(sent_at.size());
    std::size_t sent = 0;
    std::size_t answered = 0;
    const auto send_next = [&] {
      if (timed) {
        sent_at[sent] = Clock::now();
      }
      append_frame(connection_->output(), FrameKind::request, sent++, body);
    };
    on_frame_ = [&](const Frame& frame) {
      if (frame.header.sequence != answered || frame.body.size() != small_body) {
        end("an answer does not match its request");
        return;
      }
      if (timed) {
        timing.latencies_us.push_back(
            std::chrono::duration<double, std::micro>(Clock::now() - sent_at[answered]).count());
      }
      if (sent < count) {
        send_next();
      }
      if (++answered == count) {
        complete();
      }
    };
    const auto start = Clock::now();
    while (sent < std::min(window, count)) {
      send_next();
    }
    connection_->flush();
    auto seconds = run({}, start);
    if (seconds) {
      seconds->latencies_us = std::move(timing.latencies_us);
    }
    return seconds;
  }

  /// Frames that are small against a batch are copied into it; larger ones are gathered.
  expected<Timing> send(std::size_t count, std::size_t size) {
    const std::vector<std::byte> body(size, std::byte{0x5A});
    std::array<FrameHeader, 16> headers;
    std::size_t sent = 0;
    bool finish_sent = false;
    const auto copy_batch = [&] {
      auto& output = connection_->output();
      while (sent < count && output.size() < batch_bytes) {
        append_frame(output, FrameKind::note, sent++, body);
      }
      connection_->flush();
    };
    const auto gather_batch = [&] {
      std::vector<asio::const_buffer> buffers;
      std::size_t bytes = 0;
      for (auto& header : headers) {
        if (sent == count || bytes >= 4 * batch_bytes) {
          break;
        }
        header = {static_cast<std::uint32_t>(size), FrameKind::note, sent++};
        buffers.push_back(asio::buffer(&header, sizeof(header)));
        buffers.push_back(asio::buffer(body));
        bytes += size;
      }
      connection_->write_directly(buffers);
    };
    connection_->on_drained = [&] {
      if (sent < count) {
        size < batch_bytes / 8 ? copy_batch() : gather_batch();
      } else if (!std::exchange(finish_sent, true)) {
        append_frame(connection_->output(), FrameKind::finish, count, {});
      }
    };
    on_frame_ = [&](const Frame& frame) {
      std::uint64_t bytes = 0;
      if (frame.body.size() == sizeof(bytes)) {
        std::memcpy(&bytes, frame.body.data(), sizeof(bytes));
      }
      if (frame.header.sequence != count || bytes != std::uint64_t{count} * size) {
        end("not all messages arrived");
      } else {
        complete();
      }
    };
    const auto start = Clock::now();
    connection_->on_drained();
    return run({}, start);
  }

  asio::io_context context_{1};
  tcp::acceptor acceptor_{context_};
  std::unique_ptr<Connection> connection_;
  std::function<void(const Frame&)> on_frame_ = [](const Frame&) {};
  Totals totals_;
  std::string failure_;
  bool complete_ = false;
  std::thread thread_;
};

const Registration registration{"asio_raw", [] { return std::make_unique<AsioRaw>(); }};

}  // namespace

}  // namespace troupe::bench
