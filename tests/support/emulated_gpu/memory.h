// Device and pinned memory: allocations, their owners and their guards.
#pragma once

#include <span>
#include <string>

#include "streams.h"

namespace shoal::emulated_gpu {

constexpr std::size_t kGuard = 256;  // minimum number of bytes before and after each allocation

struct Allocation {
  int device = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;  // as requested
  std::byte* block = nullptr;
  std::size_t size = 0;          // with guards and padding
  cudaMemPool_t pool = nullptr;  // null: from cudaMalloc
  std::uint64_t number = 0;
};

enum class Kind { pageable, pinned, device };
struct Place {
  Kind kind = Kind::pageable;
  int device = 0;
  std::shared_ptr<Pinned> pinned;
  bool inside = true;           // the range lies within one allocation (of device or pinned memory)
  std::uint32_t opened_on = 0;  // another process's memory: a bit for each device that opened it
};
// Classifies [begin, begin + bytes). Needs the lock.
Place place_of(const void* begin, std::size_t bytes);

// The cudaMalloc allocation that begins at `data`; null: none does.
std::shared_ptr<const Allocation> exportable(const void* data);

// True if another process has it open. Needs the lock.
bool is_open_elsewhere(const Allocation& allocation);

// Registers memory of another process on `device` as an allocation that the current device can use.
void add_opened(void* begin, std::size_t bytes, int device);
void remove_opened(void* begin);

// Finds the pinned memory that the words of a launch point to. Ends the process, naming `what`, if
// a word points to pageable host memory or to a device that `device` cannot access.
std::vector<std::shared_ptr<Pinned>> pinned_among(const std::string& what,
                                                  std::span<const std::uintptr_t> words,
                                                  int device);

// Ends the process if bytes next to an allocation were overwritten. Needs the lock and an Opened.
void check_guards();

// Blocks that the library has reported to AddressSanitizer (block_marks.cc): describe_cut gives the
// text for an address within one, and forget_cuts removes the blocks of freed memory.
#ifdef __SANITIZE_ADDRESS__
std::string describe_cut(const void* address);
void forget_cuts(const void* begin, std::size_t bytes);
#else
inline std::string describe_cut(const void*) { return {}; }
inline void forget_cuts(const void*, std::size_t) {}
#endif

bool peers(int device, int peer);  // cudaDeviceEnablePeerAccess(peer) was called on `device`

}  // namespace shoal::emulated_gpu
