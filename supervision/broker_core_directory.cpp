#include "supervision/broker_core_directory.hpp"

#include <algorithm>
#include <chrono>

#include "supervision/broker_core_impl.hpp"

namespace troupe::broker {

namespace {

constexpr std::size_t max_path_bytes = 512;

/// Interests of all nodes together, per path that the directory may have.
constexpr std::size_t interests_per_path = 8;

/// Who holds something may give it back at any time; nobody can say when, so ask again soon.
constexpr std::int64_t retry_while_held_ms = 1'000;

/// Empty when `path` can be one. Control characters would spoil logs and tables.
std::string objection_to(const std::string& path) {
  if (path.empty() || path.size() > max_path_bytes) {
    return "a path has 1 to " + std::to_string(max_path_bytes) + " bytes, not " +
           std::to_string(path.size());
  }
  const bool plain = std::all_of(path.begin(), path.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20U && byte != 0x7FU;
  });
  return plain ? "" : "a path must not contain control characters";
}

DirectoryEntry nobody(const std::string& path) {
  DirectoryEntry entry;
  entry.path = path;
  return entry;
}

ClaimReply denied(ec code, std::string text, const DirectoryEntry& entry) {
  ClaimReply reply;
  reply.code = code;
  reply.text = std::move(text);
  reply.entry = entry;
  return reply;
}

}  // namespace

void Directory::load(const std::vector<DirectoryEntry>& entries, std::uint64_t epoch,
                     const View& view, const NodeId& gone, net::TimePoint now) {
  epoch_ = epoch;
  for (const auto& entry : entries) {
    epoch_ = std::max(epoch_, entry.epoch);
  }
  // Which paths an earlier broker has forgotten is not known; each generation came with an epoch of its own.
  floor_ = epoch_;
  for (const auto& entry : entries) {
    const auto [it, added] = paths_.try_emplace(entry.path, Path{entry, std::nullopt});
    if (added && !entry.node) {
      free_.emplace(entry.epoch, it->first);
    }
    if (!added || !entry.node) {
      continue;
    }
    auto& path = it->second;
    held_[entry.incarnation].insert(it->first);
    if (view.find(entry.node, entry.incarnation) == nullptr) {
      if (!entry.exclusive || (gone && entry.node == gone)) {
        free(path);
      } else {
        path.free_at = later(now, lease_);
        leases_.emplace(*path.free_at, it->first);
      }
    }
  }
}

ClaimReply Directory::claim(const ClaimRequest& request, const Member* claimant,
                            net::TimePoint now) {
  if (auto text = objection_to(request.path); !text.empty()) {
    return denied(ec::invalid_argument, "cannot claim: " + text, nobody(""));
  }
  const auto it = paths_.find(request.path);
  const auto present = it == paths_.end() ? nobody(request.path) : it->second.entry;
  if (claimant == nullptr) {
    return denied(ec::session_lost,
                  "cannot claim " + request.path + ": incarnation " +
                      std::to_string(request.incarnation) + " of " + short_string(request.node) +
                      " is not a live member; join anew",
                  present);
  }
  const bool holder = it != paths_.end() && present.node == request.node &&
                      present.incarnation == request.incarnation;
  if (request.generation != 0) {
    if (holder && request.generation == present.generation) {
      return {ec::none, "", 0, present};
    }
    return denied(ec::conflict,
                  "generation " + std::to_string(request.generation) + " of " + request.path +
                      " is over, the directory has " + std::to_string(present.generation),
                  present);
  }
  if (claimant->draining) {
    return denied(
        ec::closed,
        "cannot claim " + request.path + ": " + label(*claimant) + " is draining, use another node",
        present);
  }
  if (it == paths_.end()) {
    if (paths_.size() >= max_paths_ && !make_room()) {
      return denied(ec::limit_exceeded,
                    "cannot claim " + request.path + ": the directory has its limit of " +
                        std::to_string(max_paths_) + " paths",
                    present);
    }
    auto& path = paths_.try_emplace(request.path, Path{present, std::nullopt}).first->second;
    path.entry.generation = floor_;
    give(path, request, *claimant);
    return {ec::none, "", 0, path.entry};
  }
  auto& path = it->second;
  // A holder's release may not have arrived; what it hosts now is another thing all the same.
  if (auto reply = holder ? ClaimReply{} : contest(path, request, now); reply.code != ec::none) {
    return reply;
  }
  give(path, request, *claimant);
  return {ec::none, "", 0, path.entry};
}

/// Whether somebody who is not the present holder may have the path.
ClaimReply Directory::contest(const Path& path, const ClaimRequest& request,
                              net::TimePoint now) const {
  const auto& entry = path.entry;
  if (!entry.node) {
    return {};
  }
  if (path.free_at) {
    // The same process under a new incarnation: a node stops all it hosted before it joins anew, so
    // waiting for its own lease would protect nobody.
    if (entry.node == request.node || *path.free_at <= now) {
      return {};
    }
    const auto left = std::chrono::ceil<Milliseconds>(*path.free_at - now).count();
    auto reply = denied(ec::would_block,
                        entry.path + " was held by " + short_string(entry.node) +
                            ", which went down; its lease ends in " + std::to_string(left) + " ms",
                        entry);
    reply.retry_ms = std::max<std::int64_t>(1, left);
    return reply;
  }
  if (entry.exclusive != request.exclusive) {
    return denied(ec::conflict,
                  entry.path + " is held by " + short_string(entry.node) + " as " +
                      (entry.exclusive ? "exclusive" : "not exclusive") +
                      "; claim it the same way or release it first",
                  entry);
  }
  if (entry.exclusive) {
    auto reply = denied(
        ec::would_block,
        entry.path + " is held by " + short_string(entry.node) + " at " + entry.address, entry);
    reply.retry_ms = retry_while_held_ms;
    return reply;
  }
  return {};
}

CommandReply Directory::release(const ReleaseRequest& request) {
  const auto it = paths_.find(request.path);
  if (it == paths_.end()) {
    return {ec::not_found,
            "cannot release " + request.path.substr(0, max_path_bytes) + ": nobody ever claimed it",
            request.node};
  }
  auto& path = it->second;
  const auto& entry = path.entry;
  const bool other =
      request.generation != 0 ? entry.generation != request.generation : entry.node != request.node;
  if (other || (entry.node && entry.node != request.node)) {
    return {ec::conflict,
            "cannot release generation " + std::to_string(request.generation) + " of " +
                request.path + ": it is at generation " + std::to_string(entry.generation) +
                (entry.node ? ", held by " + short_string(entry.node) : ", free"),
            request.node};
  }
  if (entry.node) {
    // Also when its lease runs: the holder itself says that it has stopped.
    free(path);
  }
  return {ec::none, "", request.node};
}

DirectoryEntry Directory::resolve(const ResolveRequest& request, bool asker_is_live) {
  if (!objection_to(request.path).empty()) {
    return nobody(request.path.substr(0, max_path_bytes));
  }
  // Beyond the limit the answer is right but no updates follow; nodes ask again after a failed use.
  if (asker_is_live && interest_count_ < interests_per_path * max_paths_ &&
      interests_[request.path].insert(request.node).second) {
    interests_of_[request.node].insert(request.path);
    ++interest_count_;
  }
  const auto it = paths_.find(request.path);
  return it == paths_.end() ? nobody(request.path) : it->second.entry;
}

void Directory::member_ended(const NodeId& node, std::uint64_t incarnation, bool certain,
                             net::TimePoint now) {
  if (const auto held = held_.find(incarnation); held != held_.end()) {
    const auto keys = held->second;
    for (const auto key : keys) {
      auto& path = paths_.find(key)->second;
      if (certain || !path.entry.exclusive) {
        free(path);
      } else {
        path.free_at = later(now, lease_);
        leases_.emplace(*path.free_at, key);
      }
    }
  }
  if (const auto it = interests_of_.find(node); it != interests_of_.end()) {
    for (const auto& path : it->second) {
      const auto interest = interests_.find(path);
      interest->second.erase(node);
      if (interest->second.empty()) {
        interests_.erase(interest);
      }
    }
    interest_count_ -= it->second.size();
    interests_of_.erase(it);
  }
}

void Directory::member_moved(std::uint64_t incarnation, const std::string& address) {
  const auto held = held_.find(incarnation);
  if (held == held_.end()) {
    return;
  }
  for (const auto key : held->second) {
    auto& path = paths_.find(key)->second;
    path.entry.address = address;
    touch(path);
  }
}

void Directory::tick(net::TimePoint now) {
  while (!leases_.empty() && leases_.begin()->first <= now) {
    free(paths_.find(leases_.begin()->second)->second);
  }
}

std::optional<net::TimePoint> Directory::next_deadline() const {
  return leases_.empty() ? std::nullopt : std::optional{leases_.begin()->first};
}

const std::set<NodeId>& Directory::interested(const std::string& path) const {
  static const std::set<NodeId> none;
  const auto it = interests_.find(path);
  return it == interests_.end() ? none : it->second;
}

std::optional<DirectoryEntry> Directory::entry(const std::string& path) const {
  const auto it = paths_.find(path);
  return it == paths_.end() ? std::nullopt : std::optional{it->second.entry};
}

std::vector<DirectoryEntry> Directory::all() const {
  std::vector<DirectoryEntry> result;
  result.reserve(paths_.size());
  for (const auto& [key, path] : paths_) {
    result.push_back(path.entry);
  }
  return result;
}

std::vector<DirectoryEntry> Directory::take_changed() {
  std::vector<DirectoryEntry> result;
  result.reserve(changed_.size());
  for (const auto key : changed_) {
    result.push_back(paths_.find(key)->second.entry);
  }
  changed_.clear();
  return result;
}

void Directory::give(Path& path, const ClaimRequest& request, const Member& claimant) {
  unhold(path);
  path.entry.node = claimant.id;
  path.entry.incarnation = claimant.incarnation;
  path.entry.address = claimant.address;
  path.entry.exclusive = request.exclusive;
  ++path.entry.generation;
  held_[claimant.incarnation].insert(paths_.find(path.entry.path)->first);
  touch(path);
}

/// Keeps the generation, so that the next claim has a greater one.
void Directory::free(Path& path) {
  unhold(path);
  path.entry.node = {};
  path.entry.incarnation = 0;
  path.entry.address.clear();
  touch(path);
}

void Directory::unhold(Path& path) {
  const std::string_view key = paths_.find(path.entry.path)->first;
  if (path.free_at) {
    leases_.erase({*path.free_at, key});
    path.free_at.reset();
  }
  if (const auto held = held_.find(path.entry.incarnation); held != held_.end()) {
    held->second.erase(key);
    if (held->second.empty()) {
      held_.erase(held);
    }
  }
}

void Directory::touch(Path& path) {
  const std::string_view key = paths_.find(path.entry.path)->first;
  free_.erase({path.entry.epoch, key});
  path.entry.epoch = ++epoch_;
  if (!path.entry.node) {
    free_.emplace(path.entry.epoch, key);
  }
  changed_.insert(key);
}

/// Forgets the path that has been free for longest. False when all are held.
bool Directory::make_room() {
  if (free_.empty()) {
    return false;
  }
  const auto it = paths_.find(free_.begin()->second);
  free_.erase(free_.begin());
  floor_ = std::max(floor_, it->second.entry.generation);
  changed_.erase(it->first);
  removed_.push_back(it->first);
  paths_.erase(it);
  return true;
}

}  // namespace troupe::broker
