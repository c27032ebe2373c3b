#include <cstring>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/device/backends.h"

namespace shoal {
namespace {

// Work on a host stream is done when its call returns, so an event is the time it was recorded.
struct HostEvent {
  Clock::time_point time{};
};

class HostBackend final : public DeviceBackend {
 public:
  int count() const override { return 1; }
  std::string describe(Device) const override {
    return "host, " + std::to_string(available_cores()) + " cores";
  }

  void* create_stream(Device, StreamPriority) override { return nullptr; }
  void destroy_stream(Stream) noexcept override {}
  void synchronize(Stream) override {}

  void* create_event(Device) override { return new HostEvent; }
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
};

}  // namespace

std::unique_ptr<DeviceBackend> make_host_device_backend() {
  return std::make_unique<HostBackend>();
}

}  // namespace shoal
