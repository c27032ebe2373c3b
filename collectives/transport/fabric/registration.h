// Registers memory on every rail of an endpoint, and caches the registrations for later messages.
//
// An entry covers an interval of addresses and counts its uses. Unused entries are kept up to a
// limit; the one unused longest is dropped first. If registering pins pages, the default limit is
// 0: memory that the program frees and remaps would otherwise be accessed through its old pages.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "shoal/collectives/transport/fabric/rail.h"

namespace shoal::collectives::fabric {

class RegistrationCache {
 public:
  RegistrationCache(std::vector<Rail*> rails, std::size_t idle_limit)
      : rails_(std::move(rails)), idle_limit_(idle_limit) {}
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  struct Entry;

  // One use of an entry; the cache must outlive it.
  class Use {
   public:
    Use() = default;
    Use(RegistrationCache* cache, Entry* entry) : cache_(cache), entry_(entry) {}
    Use(Use&& other) noexcept : cache_(other.cache_), entry_(other.entry_) {
      other.entry_ = nullptr;
    }
    Use& operator=(Use&& other) noexcept {
      std::swap(cache_, other.cache_);
      std::swap(entry_, other.entry_);
      return *this;
    }
    ~Use() {
      if (entry_) cache_->release(entry_);
    }
    explicit operator bool() const { return entry_ != nullptr; }
    void* descriptor(int rail) const;
    std::uint64_t key(int rail) const;
    // The address that a peer uses to write at `data`.
    std::uint64_t address(int rail, const void* data) const;

   private:
    RegistrationCache* cache_ = nullptr;
    Entry* entry_ = nullptr;
  };

  // `remote`: peers may write there. `device`: it is memory of the rails' CUDA device; such an
  // entry is dropped with its last use.
  Use acquire(const void* data, std::int64_t bytes, bool remote, bool device = false);
  // Whether the range lies in registered device memory.
  bool is_device(const void* data, std::int64_t bytes);
  std::int64_t misses() const { return misses_; }
  std::size_t idle() const { return idle_.size(); }
  std::size_t size() const { return entries_.size(); }

 private:
  friend class Use;
  using Entries = std::multimap<std::uintptr_t, std::unique_ptr<Entry>>;  // by begin

  Entry* find(std::uintptr_t begin, std::uintptr_t end, bool remote);
  void release(Entry* entry) noexcept;

  std::vector<Rail*> rails_;
  std::size_t idle_limit_;
  Entries entries_;
  std::list<Entry*> idle_;      // longest unused first
  std::uintptr_t longest_ = 0;  // bytes of the longest entry so far; bounds the search
  std::int64_t misses_ = 0;
  int devices_ = 0;  // number of entries of device memory
};

struct RegistrationCache::Entry {  // covers [begin, end)
  std::uintptr_t begin = 0, end = 0;
  bool remote = false, device = false;
  int uses = 0;
  std::vector<FiMemory> regions;  // by rail
  Entries::iterator place;
  std::list<Entry*>::iterator idle_place;  // while uses == 0
};

}  // namespace shoal::collectives::fabric
