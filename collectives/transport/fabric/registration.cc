#include "shoal/collectives/transport/fabric/registration.h"

#include <algorithm>

namespace shoal::collectives::fabric {

RegistrationCache::Use RegistrationCache::acquire(const void* data, std::int64_t bytes, bool remote,
                                                  bool device) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t end = begin + static_cast<std::uintptr_t>(bytes);
  Entry* entry = find(begin, end, remote);
  if (entry) {
    if (entry->uses++ == 0) idle_.erase(entry->idle_place);
    return Use(this, entry);
  }
  auto made = std::make_unique<Entry>();
  made->begin = begin;
  made->end = end;
  made->remote = remote;
  made->device = device;
  made->uses = 1;
  for (Rail* rail : rails_)
    made->regions.push_back(rail->register_memory(const_cast<void*>(data),
                                                  static_cast<std::size_t>(bytes), remote, device));
  ++misses_;
  devices_ += device;
  longest_ = std::max(longest_, end - begin);
  entry = made.get();
  entry->place = entries_.emplace(begin, std::move(made));
  return Use(this, entry);
}

bool RegistrationCache::is_device(const void* data, std::int64_t bytes) {
  if (devices_ == 0 || bytes == 0) return false;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const Entry* entry = find(begin, begin + static_cast<std::uintptr_t>(bytes), false);
  return entry && entry->device;
}

RegistrationCache::Entry* RegistrationCache::find(std::uintptr_t begin, std::uintptr_t end,
                                                  bool remote) {
  for (auto at = entries_.upper_bound(begin); at != entries_.begin();) {
    Entry* entry = std::prev(at)->second.get();
    if (entry->begin + longest_ < end) return nullptr;  // no earlier entry reaches that far
    if (entry->end >= end && (entry->remote || !remote)) return entry;
    --at;
  }
  return nullptr;
}

void RegistrationCache::release(Entry* entry) noexcept {
  if (--entry->uses > 0) return;
  if (entry->device) {
    --devices_;
    entries_.erase(entry->place);
    return;
  }
  idle_.push_back(entry);
  entry->idle_place = std::prev(idle_.end());
  while (idle_.size() > idle_limit_) {
    Entry* oldest = idle_.front();
    idle_.pop_front();
    entries_.erase(oldest->place);
  }
}

void* RegistrationCache::Use::descriptor(int rail) const {
  return fi_mr_desc(entry_->regions[static_cast<std::size_t>(rail)].get());
}

std::uint64_t RegistrationCache::Use::key(int rail) const {
  return fi_mr_key(entry_->regions[static_cast<std::size_t>(rail)].get());
}

std::uint64_t RegistrationCache::Use::address(int rail, const void* data) const {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const Rail& owner = *cache_->rails_[static_cast<std::size_t>(rail)];
  return owner.uses_virtual_addresses() ? at : at - entry_->begin;
}

}  // namespace shoal::collectives::fabric
