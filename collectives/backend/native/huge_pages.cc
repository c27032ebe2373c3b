#include "shoal/collectives/backend/native/huge_pages.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <sys/mman.h>

#include "shoal/runtime/base/log.h"

namespace shoal::collectives::native {
namespace {

constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
constexpr std::int64_t kSmallest = 4 << 20;  // bytes of a buffer
constexpr std::uintptr_t kPiece = 16 << 20;  // bytes moved by one use
constexpr int kUses = 8;
constexpr int kMostRefusals = 16;          // of one buffer, before a piece stays as it is
constexpr std::size_t kRemembered = 1024;  // buffers
constexpr int kCollapse = 25;              // MADV_COLLAPSE, which glibc 2.36 lacks

bool are_switched_off() {
  std::string text;
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  return !std::getline(file, text) || text.find("[never]") != std::string::npos;
}

}  // namespace

HugePages::HugePages() : enabled_(!are_switched_off()) {}

void HugePages::used(const void* buffer, std::int64_t bytes) {
  if (!enabled_ || bytes < kSmallest) return;
  if (uses_.size() >= kRemembered && !uses_.contains(buffer)) uses_.clear();
  Use& use = uses_[buffer];
  if (use.bytes != bytes) use = {.bytes = bytes};
  if (++use.times < kUses) return;
  use.times = kUses;  // never overflows
  const auto begin = reinterpret_cast<std::uintptr_t>(buffer);
  const std::uintptr_t end = (begin + static_cast<std::uintptr_t>(bytes)) / kHugePage * kHugePage;
  const std::uintptr_t from =
      std::max(use.moved_to, (begin + kHugePage - 1) / kHugePage * kHugePage);
  if (from >= end) return;
  const std::uintptr_t to = std::min(end, from + kPiece);
  // The address is not dereferenced here.
  if (madvise(reinterpret_cast<void*>(from), to - from, kCollapse) != 0) {  // NOLINT
    // A peer that copies from these pages holds them for a moment.
    if (errno == EAGAIN && ++use.refused < kMostRefusals) return;
    log::once(log::Level::info, "native-huge-pages",
              fmt::format("native: the kernel does not move a buffer into huge pages: {}",
                          std::generic_category().message(errno)));
  }
  use.moved_to = to;
}

}  // namespace shoal::collectives::native
