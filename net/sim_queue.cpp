#include <algorithm>

#include "net/sim_impl.hpp"

namespace troupe::net {

namespace {

bool later(const SimQueue::Entry& a, const SimQueue::Entry& b) {
  return a.at != b.at ? a.at > b.at : a.sequence > b.sequence;
}

}  // namespace

TimerId SimQueue::push(TimePoint at, std::uint32_t node, std::function<void()> fn) {
  std::uint32_t slot = 0;
  if (free_.empty()) {
    slot = static_cast<std::uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  Slot& entry = slots_[slot];
  entry.fn = std::move(fn);
  entry.node = node;
  entry.live = true;
  const TimerId id = (TimerId{entry.generation} << 32U) | (slot + 1U);
  push_entry({at, ++sequence_, slot});
  return id;
}

void SimQueue::cancel(TimerId id) {
  const auto number = static_cast<std::uint32_t>(id);
  if (number == 0 || number > slots_.size()) {
    return;
  }
  Slot& slot = slots_[number - 1];
  if (slot.generation != static_cast<std::uint32_t>(id >> 32U) || !slot.live) {
    return;
  }
  slot.live = false;
  ++dead_;
  const auto doomed = std::move(slot.fn);
  slot.fn = nullptr;
  if (dead_ > 1024 && dead_ > heap_.size() / 2) {
    compact();
  }
}

std::optional<TimePoint> SimQueue::next() {
  while (!heap_.empty()) {
    if (slots_[heap_.front().slot].live) {
      return heap_.front().at;
    }
    const std::uint32_t slot = heap_.front().slot;
    std::pop_heap(heap_.begin(), heap_.end(), later);
    heap_.pop_back();
    free_slot(slot);
  }
  return std::nullopt;
}

SimQueue::Entry SimQueue::pop() {
  const Entry entry = heap_.front();
  std::pop_heap(heap_.begin(), heap_.end(), later);
  heap_.pop_back();
  return entry;
}

std::function<void()> SimQueue::release(const Entry& entry) {
  std::function<void()> fn = std::move(slots_[entry.slot].fn);
  free_slot(entry.slot);
  return fn;
}

void SimQueue::again(const Entry& entry, TimePoint at) {
  push_entry({at, ++sequence_, entry.slot});
}

std::vector<std::function<void()>> SimQueue::drop_node(std::uint32_t node) {
  std::vector<std::function<void()>> doomed;
  for (Slot& slot : slots_) {
    if (slot.live && slot.node == node) {
      slot.live = false;
      ++dead_;
      doomed.push_back(std::move(slot.fn));
      slot.fn = nullptr;
    }
  }
  return doomed;
}

std::vector<std::function<void()>> SimQueue::drop_all() {
  std::vector<std::function<void()>> doomed;
  for (Slot& slot : slots_) {
    slot.live = false;
    doomed.push_back(std::move(slot.fn));
    slot.fn = nullptr;
  }
  return doomed;
}

void SimQueue::push_entry(Entry entry) {
  heap_.push_back(entry);
  std::push_heap(heap_.begin(), heap_.end(), later);
}

void SimQueue::free_slot(std::uint32_t slot) {
  if (!slots_[slot].live && dead_ > 0) {
    --dead_;
  }
  slots_[slot].live = false;
  slots_[slot].fn = nullptr;
  ++slots_[slot].generation;
  free_.push_back(slot);
}

void SimQueue::compact() {
  std::vector<Entry> kept;
  kept.reserve(heap_.size());
  for (const Entry& entry : heap_) {
    if (slots_[entry.slot].live) {
      kept.push_back(entry);
    } else {
      free_slot(entry.slot);
    }
  }
  heap_ = std::move(kept);
  std::make_heap(heap_.begin(), heap_.end(), later);
}

}  // namespace troupe::net
