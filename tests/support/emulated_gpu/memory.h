// Device and pinned memory: what is allocated, to whom it belongs, and its guards.
#pragma once

#include <span>
#include <string>

#include "streams.h"

namespace shoal::emulated_gpu {

constexpr std::size_t kGuard = 256;  // bytes at least before and behind each allocation

struct Allocation {
  int device = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;  // as asked for
  std::byte* block = nullptr;
  std::size_t size = 0;          // with guards and padding
  cudaMemPool_t pool = nullptr;  // null: of cudaMalloc
  std::uint64_t number = 0;
};

enum class Kind { pageable, pinned, device };
struct Place {
  Kind kind = Kind::pageable;
  int device = 0;
  std::shared_ptr<Pinned> pinned;
  bool inside = true;           // all of it lies in one allocation (of device or pinned memory)
  std::uint32_t opened_on = 0;  // of another process: a bit for each device that opened it
};
// What lies at [begin, begin + bytes). With the lock.
Place place_of(const void* begin, std::size_t bytes);

// The allocation of cudaMalloc that begins there; null: none does.
std::shared_ptr<const Allocation> exportable(const void* data);

// Whether another process has it open. With the lock.
bool is_open_elsewhere(const Allocation& allocation);

// Memory of another process, of `device`, counts as an allocation; the current device has access.
void add_opened(void* begin, std::size_t bytes, int device);
void remove_opened(void* begin);

// Which pinned memory the words of a launch point to. Ends the process, naming `what`, where one
// points to pageable host memory or to a device that `device` has no access to.
std::vector<std::shared_ptr<Pinned>> pinned_among(const std::string& what,
                                                  std::span<const std::uintptr_t> words,
                                                  int device);

// Ends the process where something was written beside an allocation. With the lock, and Opened.
void check_guards();

// Blocks that the library has told AddressSanitizer of (block_marks.cc): what a report says of an
// address within one, and that memory has died.
#ifdef __SANITIZE_ADDRESS__
std::string describe_cut(const void* address);
void forget_cuts(const void* begin, std::size_t bytes);
#else
inline std::string describe_cut(const void*) { return {}; }
inline void forget_cuts(const void*, std::size_t) {}
#endif

bool peers(int device, int peer);  // cudaDeviceEnablePeerAccess(peer) was called on `device`

}  // namespace shoal::emulated_gpu
