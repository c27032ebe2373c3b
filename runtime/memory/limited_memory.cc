#include "shoal/runtime/memory/limited_memory.h"

#include <algorithm>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/memory/mebibytes.h"

namespace shoal {

LimitedMemory::LimitedMemory(MemoryResource& upstream, MemoryLimit limit)
    : upstream_(upstream), limit_(std::move(limit)) {
  SHOAL_CHECK(limit_.bytes >= 0, "a limit of {} bytes of memory", limit_.bytes);
}

namespace {

// Number of bytes that a block occupies. runtime/device rounds host blocks of two huge pages or
// more up to whole huge pages.
std::int64_t taken(Device device, std::size_t bytes) {
  constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
  const auto asked = static_cast<std::int64_t>(bytes);
  if (!device.is_cpu() || asked < 2 * kHugePage) return asked;
  return (asked + kHugePage - 1) / kHugePage * kHugePage;
}

}  // namespace

std::int64_t LimitedMemory::in_use() const {
  return given_.load() + (elsewhere_ ? std::max<std::int64_t>(elsewhere_(), 0) : 0);
}

void* LimitedMemory::allocate(std::size_t bytes, MemoryTag tag, Stream stream) {
  const auto refuse = [&](std::int64_t in_use) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("{} memory: no room for {} of {}: {} of {} are available ({})", name(),
                            mebibytes(bytes), to_string(tag),
                            mebibytes(std::max<std::int64_t>(limit_.bytes - in_use, 0)),
                            mebibytes(limit_.bytes), limit_.bound),
                "use a smaller batch or model, or more ranks");
  };
  if (bytes > static_cast<std::size_t>(limit_.bytes)) refuse(in_use());
  const std::int64_t more = taken(device(), bytes);
  given_ += more;  // added before the check, so that two threads cannot both pass
  if (const std::int64_t now = in_use(); now > limit_.bytes) {
    given_ -= more;
    refuse(now - more);
  }
  try {
    return upstream_.allocate(bytes, tag, stream);
  } catch (...) {
    given_ -= more;
    throw;
  }
}

void LimitedMemory::deallocate(void* pointer, std::size_t bytes, MemoryTag tag,
                               Stream stream) noexcept {
  upstream_.deallocate(pointer, bytes, tag, stream);
  given_ -= taken(device(), bytes);
}

}  // namespace shoal
