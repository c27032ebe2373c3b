#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/free_memory.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/device/backends.h"

namespace shoal {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Work on a host stream is complete when its call returns, so an event only stores the time of
// record().
struct HostEvent {
  Clock::time_point time{};
};

class HostBackend final : public DeviceBackend {
 public:
  int count() const override { return 1; }
  std::string describe(Device) const override {
    return "host, " + std::to_string(available_cores()) + " cores";
  }
  void check_available(Device device) const override {
    SHOAL_CHECK(device.index == 0, "there is one host, not a cpu:{}", device.index);
  }

  void* create_stream(Device, StreamPriority) override { return nullptr; }
  void destroy_stream(Stream) noexcept override {}
  void synchronize(Stream) override {}

  void* create_event(Device, EventKind) override { return new HostEvent; }
  void destroy_event(Device, void* event) noexcept override {
    delete static_cast<HostEvent*>(event);
  }
  void record(void* event, Stream) override { static_cast<HostEvent*>(event)->time = Clock::now(); }
  bool query(Device, void*) override { return true; }
  void wait(Stream, void*) override {}
  void synchronize(Device, void*) override {}
  double elapsed_ms(Device, void* start, void* stop) override {
    return std::chrono::duration<double, std::milli>(static_cast<HostEvent*>(stop)->time -
                                                     static_cast<HostEvent*>(start)->time)
        .count();
  }

  void copy(void* destination, const void* source, std::size_t bytes, Stream) override {
    if (bytes) std::memcpy(destination, source, bytes);
  }
  void fill(void* destination, int byte, std::size_t bytes, Stream) override {
    if (bytes) std::memset(destination, byte, bytes);
  }

  void* allocate(Device, std::size_t bytes, Stream) override {
    const bool huge = bytes >= 2 * kHugePage;
    const std::size_t alignment = huge ? kHugePage : kCacheLine;
    const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void* pointer = rounded < bytes ? nullptr : std::aligned_alloc(alignment, rounded);
    if (!pointer) throw_error(ErrorCode::out_of_memory, "no room for {} bytes", bytes);
    // Only a hint; if the kernel refuses, only speed suffers.
    if (huge) (void)madvise(pointer, rounded, MADV_HUGEPAGE);
    return pointer;
  }
  void deallocate(Device, void* pointer, Stream) noexcept override { std::free(pointer); }
  MemoryInfo memory_info(Device) const override {
    const FreeMemory now = free_memory();
    if (!now.known()) return {};
    return {static_cast<std::size_t>(now.free), static_cast<std::size_t>(now.total)};
  }
  void* allocate_pinned(std::size_t bytes) override { return allocate({}, bytes, {}); }
  void deallocate_pinned(void* pointer) noexcept override { std::free(pointer); }
};

}  // namespace

std::unique_ptr<DeviceBackend> make_host_device_backend() {
  return std::make_unique<HostBackend>();
}

}  // namespace shoal
