// Why: the broker's map of paths, apart from the rules of membership; not for other code than BrokerCore.
// Thread-safety: none, as BrokerCore.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "supervision/broker_core.hpp"

namespace troupe::broker {

class Directory {
 public:
  Directory(std::size_t max_paths, Milliseconds lease) : max_paths_(max_paths), lease_(lease) {}

  /// Takes over what an earlier broker left. What members hold that are not in `view` is freed: at once when
  /// it is not exclusive or they ended with the process `gone`, else after a whole lease, because nobody
  /// knows how much of it has passed.
  void load(const std::vector<DirectoryEntry>& entries, std::uint64_t epoch, const View& view,
            const NodeId& gone, net::TimePoint now);

  /// `claimant` is the live member, or null.
  ClaimReply claim(const ClaimRequest& request, const Member* claimant, net::TimePoint now);
  CommandReply release(const ReleaseRequest& request);
  /// Notes the interest when the asker is live.
  DirectoryEntry resolve(const ResolveRequest& request, bool asker_is_live);

  /// Frees what the member held; `certain`: nothing of it can be running any more.
  void member_ended(const NodeId& node, std::uint64_t incarnation, bool certain,
                    net::TimePoint now);
  /// The member has another address.
  void member_moved(std::uint64_t incarnation, const std::string& address);

  void tick(net::TimePoint now);
  std::optional<net::TimePoint> next_deadline() const;

  const std::set<NodeId>& interested(const std::string& path) const;
  std::optional<DirectoryEntry> entry(const std::string& path) const;
  std::uint64_t epoch() const noexcept { return epoch_; }
  std::vector<DirectoryEntry> all() const;

  bool changed() const noexcept { return !changed_.empty() || !removed_.empty(); }
  std::vector<DirectoryEntry> take_changed();
  /// Paths that were forgotten; to be taken before or with `take_changed`.
  std::vector<std::string> take_removed() { return std::exchange(removed_, {}); }

 private:
  struct Path {
    DirectoryEntry entry;
    /// Set when its holder has ended and its lease runs.
    std::optional<net::TimePoint> free_at;
  };

  ClaimReply contest(const Path& path, const ClaimRequest& request, net::TimePoint now) const;
  void give(Path& path, const ClaimRequest& request, const Member& claimant);
  void free(Path& path);
  void unhold(Path& path);
  void touch(Path& path);
  bool make_room();

  std::size_t max_paths_;
  Milliseconds lease_;
  std::uint64_t epoch_ = 0;
  std::map<std::string, Path, std::less<>> paths_;
  // Views of the keys of paths_, which stay where they are until `make_room` removes a free one.
  std::unordered_map<std::uint64_t, std::set<std::string_view>> held_;  // by incarnation
  std::set<std::pair<net::TimePoint, std::string_view>> leases_;
  std::set<std::string_view> changed_;
  /// Paths that nobody holds, the one that has been free for longest first.
  std::set<std::pair<std::uint64_t, std::string_view>> free_;
  std::vector<std::string> removed_;
  /// No forgotten path had a greater generation, so that a new path begins above it.
  std::uint64_t floor_ = 0;
  std::unordered_map<std::string, std::set<NodeId>> interests_;
  std::map<NodeId, std::set<std::string>> interests_of_;
  std::size_t interest_count_ = 0;
};

}  // namespace troupe::broker
