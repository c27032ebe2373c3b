// Compiled only under AddressSanitizer.
#include "shoal/runtime/memory/block_marks.h"

#include <sanitizer/asan_interface.h>

namespace shoal {
namespace {

// True for pinned memory that a stream's work may still use after it was given back.
bool is_late(Device device, Stream stream) { return device.is_cpu() && stream.handle != nullptr; }

}  // namespace

void mark_taken(Device device, void* block, std::size_t bytes, std::size_t room, Stream stream,
                bool again) noexcept {
  if (is_late(device, stream)) return;
  auto* const end = static_cast<std::byte*>(block) + bytes;
  if (device.is_cpu()) {
    __asan_unpoison_memory_region(block, bytes);
    __asan_poison_memory_region(end, room - bytes);
  } else if (again && stream.handle == nullptr) {
    mark_device_block(block, bytes, bytes, stream);  // work of its last owner may still run
  } else {
    mark_device_block(block, bytes, room, stream);
  }
}

void mark_given_back(Device device, void* block, std::size_t room, Stream stream) noexcept {
  if (is_late(device, stream)) return;
  if (device.is_cpu())
    __asan_poison_memory_region(block, room);
  else if (stream.handle != nullptr)
    mark_device_block(block, 0, room, stream);
}

// Device memory needs no action, since the allocator below marks it in stream order.
void forget_marks(Device device, void* block, std::size_t room) noexcept {
  if (device.is_cpu()) __asan_unpoison_memory_region(block, room);
}

}  // namespace shoal
