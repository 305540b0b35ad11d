// Why: everything that actors of this node and of one other node have in common: which local actors the
// other node may address (exports), the proxies that stand for its actors here, and the requests that are
// under way. It turns CAF messages into records of the link and back. Internal to the mesh.
// Thread-safety: any thread; the LinkHandler part on the executor's thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>
#include <caf/mailbox_element.hpp>

#include "net/link.hpp"
#include "net/message_codec.hpp"
#include "net/proxy.hpp"

namespace troupe::net {

class Mesh;

/// Totals over all peers of a node; relaxed atomics.
struct MeshCounters {
  std::atomic<std::uint64_t> messages_sent{0};
  std::atomic<std::uint64_t> messages_received{0};
  std::atomic<std::uint64_t> refused{0};        ///< sends answered with would_block
  std::atomic<std::uint64_t> malformed{0};      ///< bodies that could not be decoded
  std::atomic<std::uint64_t> unknown_types{0};  ///< bodies of types not registered here
  std::atomic<std::uint64_t> no_target{0};      ///< messages to actors that have ended
  std::atomic<std::uint64_t> undeliverable{0};  ///< the peer could not deliver what we sent
};

/// What peers share; outlives the mesh while proxies exist.
struct MeshShared {
  caf::actor_system* system = nullptr;
  const TypeRegistry* registry = nullptr;
  NodeId self;
  MeshCounters counters;
  // Local actors whose messages travel on the control lane.
  std::atomic<bool> any_control{false};
  mutable std::shared_mutex control_mutex;
  std::unordered_set<std::uint64_t> control_actors;

  bool is_control(std::uint64_t id) const;
};

class Peer final : public LinkHandler, public std::enable_shared_from_this<Peer> {
 public:
  using FindHandler = std::function<void(expected<caf::strong_actor_ptr>)>;

  Peer(std::shared_ptr<MeshShared> shared, std::weak_ptr<Mesh> mesh, Executor& executor,
       std::shared_ptr<Link> link);
  ~Peer() override;

  const NodeId& id() const noexcept { return id_; }
  const std::shared_ptr<Link>& link() const noexcept { return link_; }
  const caf::node_id& caf_node() const noexcept { return caf_node_; }

  // -- outgoing --------------------------------------------------------------------------------------

  /// Sends what was enqueued to `target`. A request that cannot be sent is answered with the error.
  void send_message(RemoteProxy& target, caf::mailbox_element_ptr what, caf::execution_unit* ctx);

  /// Posts a link or unlink record; safe under actor mutexes.
  void post_link(RemoteProxy& target, caf::strong_actor_ptr local, RecordKind kind);

  /// Asks the peer for the actor published as `name`. `done` is called once, on the executor.
  void find(std::string name, Duration timeout, FindHandler done);

  /// One-shot: `fn` runs once the lane is writable again, or the link is down.
  void when_writable(Lane lane, std::function<void()> fn);

  // -- tables ----------------------------------------------------------------------------------------

  /// The proxy for actor `id` of the peer. `from_peer`: the id came in a record from the peer itself
  /// (and counts); otherwise the peer is told of the new proxy.
  caf::strong_actor_ptr import_actor(std::uint64_t id, bool from_peer);

  /// The local actor that the peer knows as `id`, or null.
  caf::strong_actor_ptr exported(std::uint64_t id) const;

  std::size_t export_count() const;
  std::size_t proxy_count() const;
  std::size_t pending_count() const;

  /// Forgets a pending request that was answered by way of another node.
  bool forget_pending(std::uint64_t requester, caf::message_id mid);

  /// The same for all peers of this node.
  void forget_everywhere(std::uint64_t requester, caf::message_id mid);

  void proxy_destroyed(RemoteProxy& proxy);
  void update_pin(RemoteProxy& proxy);
  void actor_ended(std::uint64_t id, const caf::error& reason);

  // -- LinkHandler -----------------------------------------------------------------------------------

  void on_record(const Record& record, CreditToken token) override;
  void on_writable(Lane lane) override;
  void on_state(LinkState state) override;
  void on_down(const error& reason) override;

 private:
  friend class ExportScope;
  friend class ImportScope;

  struct Export {
    caf::strong_actor_ptr actor;
    std::uint64_t sent = 0;  // how often the id was sent to the peer
  };

  struct ProxyEntry {
    RemoteProxy* proxy = nullptr;
    caf::weak_actor_ptr weak;
  };

  struct PendingKey {
    std::uint64_t requester = 0;
    std::uint64_t request = 0;
    friend bool operator==(const PendingKey&, const PendingKey&) = default;
  };
  struct PendingHash {
    std::size_t operator()(const PendingKey& key) const noexcept {
      return static_cast<std::size_t>((key.requester * 0x9E3779B97F4A7C15ULL) ^ key.request);
    }
  };

  struct Question {
    FindHandler done;
    TimerId timer = 0;
  };

  void count_export(const caf::strong_actor_ptr& actor, bool& fresh);
  void uncount_export(std::uint64_t id, std::uint64_t count);
  caf::strong_actor_ptr local_actor(std::uint64_t id) const;
  void stop_watching(const caf::strong_actor_ptr& actor);
  void attach_notifier(const caf::strong_actor_ptr& actor);
  void name_source(const caf::strong_actor_ptr& sender, class ExportScope& scope,
                   RecordHeader& header, std::vector<std::byte>& prefix);
  Lane lane_of(const RemoteProxy& target, const caf::strong_actor_ptr& sender,
               caf::message_id mid) const;
  Lane lane_of_local(std::uint64_t id) const;
  bool add_pending(const caf::strong_actor_ptr& sender, caf::message_id mid);
  void respond(const caf::strong_actor_ptr& requester, caf::message_id mid, caf::error reason,
               caf::execution_unit* ctx) const;

  caf::strong_actor_ptr sender_of(const caf::mailbox_element& what, error& problem) const;
  SendResult send_body(Lane lane, const RecordHeader& header, EncodedBody& body,
                       std::span<const std::byte> prefix, caf::mailbox_element_ptr& what,
                       SendForce force);
  void send_system(RecordKind kind, Lane lane, std::uint64_t source, std::uint64_t target,
                   std::uint64_t mid, std::span<const std::byte> body = {},
                   std::uint16_t extra = 0);
  void send_error(RecordKind kind, Lane lane, std::uint64_t source, std::uint64_t target,
                  std::uint64_t mid, const caf::error& reason);
  void not_encoded(RemoteProxy& target, const caf::strong_actor_ptr& sender, caf::message_id mid,
                   const error& reason, caf::execution_unit* ctx);
  void not_sent(RemoteProxy& target, const caf::strong_actor_ptr& sender, caf::message_id mid,
                SendResult result, caf::execution_unit* ctx);
  caf::error read_error(const Record& record);

  void on_message(const Record& record, CreditToken token);
  expected<caf::strong_actor_ptr> source_of(const Record& record);
  void reject(const Record& record, const caf::strong_actor_ptr& source,
              const caf::strong_actor_ptr& target, const error& reason);
  void on_peer_down(const Record& record);
  void on_link_record(const Record& record);
  void on_claim(const Record& record);
  void on_find(const Record& record);
  void on_found(const Record& record);
  void ask(std::string name, Duration timeout, FindHandler done);
  void answer(std::uint64_t question, expected<caf::strong_actor_ptr> result);

  const std::shared_ptr<MeshShared> shared_;
  const std::weak_ptr<Mesh> mesh_;
  Executor& executor_;
  const std::shared_ptr<Link> link_;
  const NodeId id_;
  const caf::node_id caf_node_;

  mutable std::mutex exports_mutex_;
  std::unordered_map<std::uint64_t, Export> exports_;

  mutable std::mutex proxies_mutex_;
  std::unordered_map<std::uint64_t, ProxyEntry> proxies_;
  std::unordered_map<RemoteProxy*, caf::strong_actor_ptr> pinned_;
  bool proxies_closed_ = false;  // the link is down, with
  error down_reason_;

  mutable std::mutex pending_mutex_;
  struct Pending {
    caf::strong_actor_ptr requester;
    caf::message_id mid;
  };
  std::unordered_map<PendingKey, Pending, PendingHash> pending_;
  bool pending_closed_ = false;

  std::mutex writable_mutex_;
  std::array<std::vector<std::function<void()>>, lane_count> waiting_;

  // Executor's thread:
  std::unordered_map<std::uint64_t, Question> questions_;
  std::uint64_t next_question_ = 1;
  std::atomic<std::int64_t> next_refusal_log_{0};
};

}  // namespace troupe::net
