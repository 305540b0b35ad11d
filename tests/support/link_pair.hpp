// Two or more nodes with link managers on the simulated transport, and what the tests check about them:
// each record arrives once, in order, or the link is declared down.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "net/link_manager.hpp"
#include "net/philox.hpp"
#include "net/sim.hpp"

namespace troupe::test {

/// One simulated node that counts what it receives.
class SimLinkNode final : public net::LinkObserver {
 public:
  SimLinkNode(net::SimWorld& world, std::uint32_t index, net::LinkManagerConfig config = {})
      : world_(world), id_(world.node_id(index)), address_("node" + std::to_string(index) + ":1") {
    transport_ = &world.make_transport(id_, address_);
    config.self = id_;
    config.name = "node" + std::to_string(index);
    if (config.cluster.empty()) {
      config.cluster = "test";
    }
    config.build = "test";
    config.address = address_;
    manager_ = std::make_shared<net::LinkManager>(*transport_, config, *this);
    manager_->start();
  }

  ~SimLinkNode() override { manager_->stop({ec::closed, "test is over"}); }

  const NodeId& id() const { return id_; }
  const std::string& address() const { return address_; }
  net::LinkManager& manager() { return *manager_; }
  std::shared_ptr<net::Link> link(const NodeId& peer) const { return manager_->find(peer); }

  /// Sends `number` as a record with `size` bytes of filling derived from the number.
  net::SendResult send(const NodeId& peer, net::Lane lane, std::uint64_t number, std::size_t size) {
    const auto link = manager_->find(peer);
    if (!link) {
      return net::SendResult::down;
    }
    std::vector<std::byte> body(size);
    PhiloxStream fill{number, 77};
    for (auto& byte : body) {
      byte = static_cast<std::byte>(fill());
    }
    net::RecordHeader header;
    header.mid = number;
    const net::ConstBuffer piece{body};
    return link->send(lane, header, {&piece, 1});
  }

  struct Stream {
    std::array<std::vector<std::uint64_t>, net::lane_count> numbers;
    std::uint64_t bytes = 0;
    bool intact = true;
  };

  /// What has arrived from `peer` on its current link.
  Stream& from(const NodeId& peer) { return streams_[peer]; }

  std::vector<error>& downs() { return downs_; }
  std::vector<NodeId>& ups() { return ups_; }
  unsigned writable_calls = 0;
  /// Tokens are kept here instead of being released while set.
  bool hold_credit = false;
  std::deque<net::CreditToken> held;

  // LinkObserver
  std::shared_ptr<net::LinkHandler> make_handler(const std::shared_ptr<net::Link>& link) override {
    return std::make_shared<Handler>(*this, link->peer());
  }
  void on_link_up(const std::shared_ptr<net::Link>& link, const net::Hello&) override {
    ups_.push_back(link->peer());
    world_.log(id_, "up " + short_string(link->peer()));
  }

 private:
  class Handler final : public net::LinkHandler {
   public:
    Handler(SimLinkNode& node, const NodeId& peer) : node_(node), peer_(peer) {}

    void on_record(const net::Record& record, net::CreditToken token) override {
      auto& stream = node_.streams_[peer_];
      stream.numbers[static_cast<std::size_t>(record.lane)].push_back(record.header.mid);
      stream.bytes += record.body.size();
      PhiloxStream fill{record.header.mid, 77};
      for (const auto byte : record.body) {
        stream.intact = stream.intact && byte == static_cast<std::byte>(fill());
      }
      node_.world_.log(node_.id_, "record " + std::to_string(record.header.mid) + " of " +
                                      std::to_string(record.body.size()));
      if (node_.hold_credit) {
        node_.held.push_back(std::move(token));
      }
    }
    void on_writable(net::Lane) override { ++node_.writable_calls; }
    void on_state(net::LinkState) override {}
    void on_down(const error& reason) override {
      node_.downs_.push_back(reason);
      node_.world_.log(node_.id_, "down " + short_string(peer_) + " " + to_string(reason));
    }

   private:
    SimLinkNode& node_;
    NodeId peer_;
  };

  net::SimWorld& world_;
  NodeId id_;
  std::string address_;
  net::SimTransport* transport_ = nullptr;
  std::shared_ptr<net::LinkManager> manager_;
  std::map<NodeId, Stream> streams_;
  std::vector<error> downs_;
  std::vector<NodeId> ups_;
};

/// True when `numbers` is first, first + 1, …, first + count - 1.
inline bool is_sequence(const std::vector<std::uint64_t>& numbers, std::uint64_t first,
                        std::size_t count) {
  if (numbers.size() != count) {
    return false;
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (numbers[i] != first + i) {
      return false;
    }
  }
  return true;
}

}  // namespace troupe::test
