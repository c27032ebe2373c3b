#include "shoal/runtime/io/mapped_files.h"

#include <array>
#include <atomic>
#include <cstdint>

namespace shoal {
namespace {

constexpr std::size_t kMost = 4096;

struct Mapped {
  std::atomic<std::uintptr_t> begin{0};  // 0: unused entry; set last
  std::atomic<bool> taken{false};
  std::atomic<std::size_t> bytes{0};
  std::atomic<const char*> path{nullptr};
};
std::array<Mapped, kMost> all;

}  // namespace

void note_mapped(const void* begin, std::size_t bytes, const char* path) noexcept {
  for (Mapped& one : all) {
    if (one.taken.load() || one.taken.exchange(true)) continue;
    one.bytes = bytes;
    one.path = path;
    one.begin = reinterpret_cast<std::uintptr_t>(begin);
    return;
  }
}

void forget_mapped(const void* begin) noexcept {
  for (Mapped& one : all) {
    if (one.begin != reinterpret_cast<std::uintptr_t>(begin)) continue;
    one.begin = 0;
    one.taken = false;
    return;
  }
}

const char* path_of_mapped(const void* address) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const Mapped& one : all)
    if (const std::uintptr_t begin = one.begin; begin != 0 && at >= begin && at - begin < one.bytes)
      return one.path;
  return nullptr;
}

}  // namespace shoal
