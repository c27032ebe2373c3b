#include "memory.h"

#include <algorithm>
#include <bit>
#include <set>

#include "arena.h"
#include "sanitizer.h"
#include "settings.h"
#include "stream.h"
#include <fmt/format.h>
#include <sys/mman.h>

using namespace shoal::emulated_gpu;

struct CUmemPoolHandle_st {
  int device = 0;
  std::uint64_t keeps = 0;  // bytes that a synchronisation does not release
};

namespace shoal::emulated_gpu {
namespace {

constexpr std::size_t rounded(std::size_t bytes, std::size_t step) {
  return (bytes + step - 1) / step * step;
}

// Bytes to map for pinned memory: it is followed by a page that belongs to no allocation.
constexpr std::size_t mapped_for(std::size_t bytes) {
  return rounded(bytes, kPage) + (kAddressSanitizer ? kPage : 0);
}

int current_device() {
  int device = 0;
  (void)cudaGetDevice(&device);
  return device;
}

// A hole among a device's allocations. A hole freed in stream order is usable only by that stream
// until the free has run. A pool's holes belong to the pool until it releases them.
struct Hole {
  std::size_t size = 0;
  cudaMemPool_t pool = nullptr;
  std::shared_ptr<Record> freed;  // null: the free has run
};

struct Heap {
  std::map<std::byte*, Hole> holes;
  std::map<std::byte*, std::shared_ptr<Allocation>> live;  // keyed by data, in the order of calls
  std::map<std::byte*, std::shared_ptr<Allocation>> guarded;  // in stream order
  std::size_t used = 0;  // bytes that are allocated or held by pools
};

// A mapping of another process's memory.
struct Window {
  std::size_t bytes = 0;
  int device = 0;
  std::uint32_t opened_on = 0;  // one bit for each device
};

struct Memory {
  std::vector<Heap> heaps;  // one for each device
  std::map<std::byte*, std::shared_ptr<Pinned>> pinned;
  std::map<std::byte*, Window> opened;
  std::set<cudaMemPool_t> pools;
  std::set<std::pair<int, int>> peers;
  std::uint64_t allocations = 0;

  static Memory& get() {
    static Memory& memory = *[] {
      auto* made = new Memory;
      made->heaps.resize(static_cast<std::size_t>(settings().devices));
      for (int device = 0; device < settings().devices; ++device)
        made->heaps[static_cast<std::size_t>(device)].holes[Arena::get().begin(device)] = {
            Arena::get().span(), nullptr, nullptr};
      return made;
    }();
    return memory;
  }
};

Heap& heap_of(int device) { return Memory::get().heaps[static_cast<std::size_t>(device)]; }

// Joins adjacent holes that have the same permitted users.
void settle(Heap& heap) {
  for (auto hole = heap.holes.begin(); hole != heap.holes.end();) {
    if (hole->second.freed && hole->second.freed->done) hole->second.freed.reset();
    if (hole != heap.holes.begin()) {
      const auto before = std::prev(hole);
      if (before->first + before->second.size == hole->first &&
          before->second.pool == hole->second.pool && !before->second.freed &&
          !hole->second.freed) {
        before->second.size += hole->second.size;
        hole = heap.holes.erase(hole);
        continue;
      }
    }
    ++hole;
  }
}

// Reduces the bytes that the pool holds to at most `keep`.
void trim(Heap& heap, cudaMemPool_t pool, std::size_t keep) {
  settle(heap);
  std::size_t held = 0;
  for (const auto& [begin, hole] : heap.holes)
    if (hole.pool == pool) held += hole.size;
  for (auto& [begin, hole] : heap.holes) {
    if (held <= keep) break;
    if (hole.pool != pool || hole.freed) continue;
    held -= hole.size;
    heap.used -= hole.size;
    hole.pool = nullptr;
    Arena::get().release(begin, hole.size);
  }
  settle(heap);
}

// First fit, aligned to `step`, among the holes of one pool (or of no pool) that `stream` may use
// now.
std::byte* take(Heap& heap, std::size_t size, std::size_t step, cudaMemPool_t pool,
                const CUstream_st* stream) {
  for (const auto& [begin, found] : heap.holes) {
    const std::size_t skipped = -reinterpret_cast<std::uintptr_t>(begin) % step;
    if (found.pool != pool || found.size < skipped + size) continue;
    if (found.freed && found.freed->stream.get() != stream) continue;
    std::byte* const first = begin;
    const Hole hole = found;
    heap.holes.erase(first);
    const auto keep = [&](std::size_t from, std::size_t to) {
      if (from < to) heap.holes.emplace(first + from, Hole{to - from, hole.pool, hole.freed});
    };
    keep(0, skipped);
    keep(skipped + size, hole.size);
    return first + skipped;
  }
  return nullptr;
}

std::shared_ptr<Allocation> allocate(int device, std::size_t bytes, std::size_t step,
                                     cudaMemPool_t pool, const CUstream_st* stream) {
  Heap& heap = heap_of(device);
  if (bytes > settings().memory) return nullptr;
  const std::size_t size = rounded(kGuard + bytes + kGuard, step);
  settle(heap);
  std::byte* block = pool ? take(heap, size, step, pool, stream) : nullptr;
  if (!block) {
    // Real pools can map scattered pieces side by side, so a fragmented pool must not fail here.
    if (pool && heap.used + size > settings().memory) trim(heap, pool, 0);
    if (heap.used + size > settings().memory) return nullptr;
    block = take(heap, size, step, nullptr, stream);
    if (!block) return nullptr;
    heap.used += size;
  }
  auto made = std::make_shared<Allocation>();
  made->device = device;
  made->data = block + kGuard;
  made->bytes = bytes;
  made->block = block;
  made->size = size;
  made->pool = pool;
  made->number = ++Memory::get().allocations;
  heap.live.emplace(made->data, made);
  Arena::get().use(device, block + size);
  return made;
}

void check_guard(const Allocation& of) {
  const std::byte* const end = of.data + of.bytes;
  const auto behind = static_cast<std::size_t>(of.block + of.size - end);
  const std::size_t before = unpoisoned(of.block, kGuard, Poison::guard),
                    after = unpoisoned(end, behind, Poison::guard);
  if (before == kGuard && after == behind) return;
  const bool low = before < kGuard;
  fail(fmt::format("something wrote {} bytes {} allocation {} of {} bytes at {} on device {}",
                   low ? kGuard - before : after, low ? "before" : "behind the end of", of.number,
                   of.bytes, static_cast<const void*>(of.data), of.device));
}

// Sets the content of memory from its turn in the stream on.
void begin_life(const std::shared_ptr<Allocation>& of) {
  const Arena& arena = Arena::get();
  arena.fill(of->block, kGuard, Poison::guard);
  arena.fill(of->data, of->bytes, Poison::fresh);
  std::byte* const end = of->data + of->bytes;
  arena.fill(end, static_cast<std::size_t>(of->block + of->size - end), Poison::guard);
  allow(of->data, of->bytes);
  const Lock lock(Streams::get().mutex);
  heap_of(of->device).guarded.emplace(of->data, of);
}
void end_life(const std::shared_ptr<Allocation>& of) {
  {
    const Opened opened;
    const Lock lock(Streams::get().mutex);
    check_guard(*of);
    heap_of(of->device).guarded.erase(of->data);
  }
  forbid(of->block, of->size);
  forget_cuts(of->block, of->size);
  Arena::get().fill(of->block, of->size, Poison::freed);
}

// The live allocation that contains an address; null: none does.
std::shared_ptr<Allocation> find_live(const Heap& heap, const std::byte* at) {
  auto after = heap.live.upper_bound(const_cast<std::byte*>(at));
  if (after == heap.live.begin()) return nullptr;
  const auto& found = std::prev(after)->second;
  return at < found->data + std::max<std::size_t>(found->bytes, 1) ? found : nullptr;
}

bool is_mapped(const void* address) {
  unsigned char resident = 0;
  auto* const at = static_cast<std::byte*>(const_cast<void*>(address));
  return mincore(at - reinterpret_cast<std::uintptr_t>(at) % kPage, kPage, &resident) == 0;
}

}  // namespace

Place place_of(const void* begin, std::size_t bytes) {
  Memory& memory = Memory::get();
  auto* const at = static_cast<std::byte*>(const_cast<void*>(begin));
  if (const int device = Arena::get().device_of(at); device >= 0) {
    const auto found = find_live(heap_of(device), at);
    return {Kind::device, device, nullptr, found && at + bytes <= found->data + found->bytes};
  }
  if (const auto after = memory.opened.upper_bound(at); after != memory.opened.begin()) {
    const auto& [start, of] = *std::prev(after);
    if (at < start + of.bytes)
      return {Kind::device, of.device, nullptr, at + bytes <= start + of.bytes, of.opened_on};
  }
  if (const auto after = memory.pinned.upper_bound(at); after != memory.pinned.begin()) {
    const auto& of = std::prev(after)->second;
    if (at < of->begin + of->bytes)
      return {Kind::pinned, 0, of, at + bytes <= of->begin + of->bytes};
  }
  if (Arena::get().holds(at)) return {Kind::device, 0, nullptr, false};
  return {};
}

std::shared_ptr<const Allocation> exportable(const void* data) {
  const int device = Arena::get().device_of(data);
  if (device < 0) return nullptr;
  const Heap& heap = heap_of(device);
  const auto found = heap.live.find(static_cast<std::byte*>(const_cast<void*>(data)));
  return found == heap.live.end() || found->second->pool ? nullptr : found->second;
}

void add_opened(void* begin, std::size_t bytes, int device) {
  Window& window = Memory::get().opened[static_cast<std::byte*>(begin)];
  window.bytes = bytes;
  window.device = device;
  window.opened_on |= 1u << current_device();
}
void remove_opened(void* begin) { Memory::get().opened.erase(static_cast<std::byte*>(begin)); }

bool peers(int device, int peer) {
  return device == peer || Memory::get().peers.contains({device, peer});
}

std::vector<std::shared_ptr<Pinned>> pinned_among(const std::string& what,
                                                  std::span<const std::uintptr_t> words,
                                                  int device) {
  // AddressSanitizer's own data lies below 0x10007fff8000, so two small numbers in one word cannot
  // look like an address.
  constexpr std::uintptr_t kLowest = kAddressSanitizer ? 0x10007fff8000 : std::uintptr_t{1} << 32,
                           kHighest = std::uintptr_t{1} << 47;
  std::vector<std::shared_ptr<Pinned>> found;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] < kLowest || words[i] >= kHighest) continue;
    const auto* address = std::bit_cast<const void*>(words[i]);
    const Place place = place_of(address, 0);
    if (place.kind == Kind::pinned) found.push_back(place.pinned);
    if (place.kind == Kind::pageable && is_mapped(address))
      fail(fmt::format("{}: word {} of its arguments, {}, points to host memory that is not pinned",
                       what, i, address));
    const bool reached =
        place.opened_on != 0 ? (place.opened_on >> device & 1u) != 0 : peers(device, place.device);
    if (place.kind == Kind::device && place.inside && !reached)
      fail(
          fmt::format("{} on device {}: word {} of its arguments, {}, lies on device {}, to which "
                      "it has no access: enable peer access, or open that memory there",
                      what, device, i, address, place.device));
  }
  return found;
}

void check_guards() {
  for (const Heap& heap : Memory::get().heaps)
    for (const auto& [data, allocation] : heap.guarded) check_guard(*allocation);
}

std::string describe_address(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  const int device = Arena::get().device_of(at);
  if (device < 0) return "memory opened from another process, or closed since";
  const Lock lock(Streams::get().mutex, std::try_to_lock);
  if (!lock) return fmt::format("on device {}", device);
  const Heap& heap = heap_of(device);
  const auto after = heap.live.upper_bound(const_cast<std::byte*>(at));
  if (after == heap.live.begin()) return fmt::format("on device {}, in no allocation", device);
  const Allocation& of = *std::prev(after)->second;
  const auto offset = at - of.data;
  if (static_cast<std::size_t>(offset) < of.bytes)
    return fmt::format("byte {} of allocation {} of {} bytes on device {}{}", offset, of.number,
                       of.bytes, device, describe_cut(address));
  return fmt::format("on device {}, in no allocation: {} bytes behind the end of {} of {} bytes",
                     device, static_cast<std::size_t>(offset) - of.bytes, of.number, of.bytes);
}

namespace {

// Pools release what they hold beyond their threshold.
void trim_pools(int device) {
  for (const cudaMemPool_t pool : Memory::get().pools)
    if (pool->device == device && pool->keeps < settings().memory)
      trim(heap_of(device), pool, pool->keeps);
}

// Turns the memory of a freed allocation into a hole.
void add_hole(const Allocation& of, std::shared_ptr<Record> freed) {
  Heap& heap = heap_of(of.device);
  if (!of.pool) heap.used -= of.size;
  if (!of.pool && !freed) Arena::get().release(of.block, of.size);
  heap.holes[of.block] = {of.size, of.pool, std::move(freed)};
}

}  // namespace
}  // namespace shoal::emulated_gpu

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  std::shared_ptr<Allocation> made;
  const cudaError_t status = call("cudaMalloc", [&](Lock& lock) {
    if (!pointer) return cudaErrorInvalidValue;
    *pointer = nullptr;
    if (const cudaError_t refused = refuse_unordered(lock)) return refused;
    if (bytes == 0) return cudaSuccess;
    trim_pools(current_device());
    made = allocate(current_device(), bytes, kPage, nullptr, nullptr);
    if (!made) return cudaErrorMemoryAllocation;
    *pointer = made->data;
    return cudaSuccess;
  });
  if (made) begin_life(made);
  return status;
}

cudaError_t cudaFree(void* pointer) {
  std::shared_ptr<Allocation> gone;
  const cudaError_t status = call("cudaFree", [&](Lock& lock) {
    if (!pointer) return cudaSuccess;
    if (const cudaError_t refused = refuse_unordered(lock)) return refused;
    const int device = Arena::get().device_of(pointer);
    if (device < 0) return cudaErrorInvalidValue;
    run_device(lock, device);  // as CUDA does
    Heap& heap = heap_of(device);
    const auto found = heap.live.find(static_cast<std::byte*>(pointer));
    if (found == heap.live.end()) return cudaErrorInvalidValue;
    // CUDA leaves this undefined.
    if (is_open_elsewhere(*found->second))
      fail(fmt::format("cudaFree of {} bytes that another process still has open",
                       found->second->bytes));
    gone = found->second;
    heap.live.erase(found);
    return cudaSuccess;
  });
  if (!gone) return status;
  end_life(gone);
  const Lock lock(Streams::get().mutex);
  add_hole(*gone, nullptr);
  return status;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  return call("cudaMemPoolCreate", [&](Lock&) {
    if (!pool || !properties || properties->allocType != cudaMemAllocationTypePinned ||
        properties->location.type != cudaMemLocationTypeDevice || properties->location.id < 0 ||
        properties->location.id >= settings().devices)
      return cudaErrorInvalidValue;
    *pool = new CUmemPoolHandle_st{properties->location.id, 0};
    Memory::get().pools.insert(*pool);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return call("cudaMemPoolSetAttribute", [&](Lock&) {
    if (!Memory::get().pools.contains(pool) || !value ||
        attribute != cudaMemPoolAttrReleaseThreshold)
      return cudaErrorInvalidValue;
    pool->keeps = *static_cast<const std::uint64_t*>(value);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t keep) {
  return call("cudaMemPoolTrimTo", [&](Lock&) {
    if (!Memory::get().pools.contains(pool)) return cudaErrorInvalidValue;
    trim(heap_of(pool->device), pool, keep);
    return cudaSuccess;
  });
}

cudaError_t cudaMallocFromPoolAsync(void** pointer, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t handle) {
  return call("cudaMallocFromPoolAsync", [&](Lock& lock) {
    const auto stream = stream_of(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!pointer || !Memory::get().pools.contains(pool)) return cudaErrorInvalidValue;
    *pointer = nullptr;
    // CUDA would add a node to the graph, which Shoal could not use.
    if (const cudaError_t refused = refuse_wait(lock, stream)) return refused;
    if (bytes == 0) return cudaSuccess;
    trim_pools(pool->device);
    const auto made = allocate(pool->device, bytes, kGuard, pool, stream.get());
    if (!made) return cudaErrorMemoryAllocation;
    Operation birth;
    birth.work = [made] { begin_life(made); };
    if (const cudaError_t refused = submit(lock, stream, std::move(birth))) return refused;
    *pointer = made->data;
    return cudaSuccess;
  });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t handle) {
  return call("cudaFreeAsync", [&](Lock& lock) {
    const auto stream = stream_of(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!pointer) return cudaSuccess;
    if (const cudaError_t refused = refuse_wait(lock, stream)) return refused;
    const int device = Arena::get().device_of(pointer);
    if (device < 0) return cudaErrorInvalidValue;
    Heap& heap = heap_of(device);
    const auto found = heap.live.find(static_cast<std::byte*>(pointer));
    if (found == heap.live.end()) return cudaErrorInvalidValue;
    const std::shared_ptr<Allocation> gone = found->second;
    Operation death;
    death.work = [gone] { end_life(gone); };
    death.record = std::make_shared<Record>();
    death.record->stream = stream;
    heap.live.erase(found);
    add_hole(*gone, death.record);
    return submit(lock, stream, std::move(death));
  });
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  return call("cudaHostAlloc", [&](Lock& lock) {
    if (!pointer || bytes == 0 || flags > (cudaHostAllocPortable | cudaHostAllocMapped))
      return cudaErrorInvalidValue;
    if (const cudaError_t refused = refuse_unordered(lock)) return refused;
    if (bytes > (std::size_t{1} << 46)) return cudaErrorMemoryAllocation;
    const std::size_t mapped = mapped_for(bytes);
    void* made = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return cudaErrorMemoryAllocation;
    forbid(static_cast<std::byte*>(made) + bytes, mapped - bytes);
    *pointer = made;
    auto pinned = std::make_shared<Pinned>();
    pinned->begin = static_cast<std::byte*>(made);
    pinned->bytes = bytes;
    Memory::get().pinned.emplace(pinned->begin, std::move(pinned));
    return cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* pointer) {
  return call("cudaFreeHost", [&](Lock& lock) {
    if (!pointer) return cudaSuccess;
    if (const cudaError_t refused = refuse_unordered(lock)) return refused;
    auto& all = Memory::get().pinned;
    const auto found = all.find(static_cast<std::byte*>(pointer));
    if (found == all.end()) return cudaErrorInvalidValue;
    const std::shared_ptr<Pinned> gone = found->second;
    if (gone->pending > 0)
      fail(fmt::format("cudaFreeHost of {} bytes at {} that {} queued operations still use",
                       gone->bytes, pointer, gone->pending));
    all.erase(found);
    allow(pointer, mapped_for(gone->bytes));
    munmap(pointer, mapped_for(gone->bytes));
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call("cudaMemGetInfo", [&](Lock&) {
    if (!free || !total) return cudaErrorInvalidValue;
    trim_pools(current_device());
    *total = settings().memory;
    *free = settings().memory - heap_of(current_device()).used;
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return call("cudaPointerGetAttributes", [&](Lock&) {
    if (!attributes) return cudaErrorInvalidValue;
    const Place place = place_of(pointer, 0);
    auto* const address = const_cast<void*>(pointer);
    switch (place.kind) {
      case Kind::device:
        *attributes = {cudaMemoryTypeDevice, place.device, address, nullptr};
        break;
      case Kind::pinned:
        *attributes = {cudaMemoryTypeHost, 0, address, address};
        break;
      case Kind::pageable:
        *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, address};
    }
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return call("cudaDeviceEnablePeerAccess", [&](Lock&) {
    const int device = current_device();
    if (peer < 0 || peer >= settings().devices || peer == device) return cudaErrorInvalidDevice;
    if (flags != 0) return cudaErrorInvalidValue;
    make_context("cudaDeviceEnablePeerAccess", peer);
    return Memory::get().peers.emplace(device, peer).second ? cudaSuccess
                                                            : cudaErrorPeerAccessAlreadyEnabled;
  });
}
