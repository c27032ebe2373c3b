// Linked if SHOAL_CUDA is OFF: there are no CUDA devices, and every call reports the reason.
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/backends.h"
#include "shoal/runtime/device/identity.h"

namespace shoal {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::unavailable, "this build of Shoal has no CUDA",
              "configure with -DSHOAL_CUDA=ON, or use the device cpu");
}

class NoCuda final : public DeviceBackend {
 public:
  int count() const override { return 0; }
  std::string describe(Device) const override { refuse(); }
  void check_available(Device) const override { refuse(); }
  void* create_stream(Device, StreamPriority) override { refuse(); }
  void destroy_stream(Stream) noexcept override {}
  void synchronize(Stream) override { refuse(); }
  void wait_for_device(Device) override { refuse(); }
  void* create_event(Device, EventKind) override { refuse(); }
  void destroy_event(Device, void*) noexcept override {}
  void record(void*, Stream) override { refuse(); }
  bool query(Device, void*) override { refuse(); }
  void wait(Stream, void*) override { refuse(); }
  void synchronize(Device, void*) override { refuse(); }
  double elapsed_ms(Device, void*, void*) override { refuse(); }
  void copy(void*, const void*, std::size_t, Stream) override { refuse(); }
  void fill(void*, int, std::size_t, Stream) override { refuse(); }
  void* allocate(Device, std::size_t, Stream) override { refuse(); }
  void deallocate(Device, void*, Stream) noexcept override {}
  void* allocate_pinned(std::size_t) override { refuse(); }
  void deallocate_pinned(void*) noexcept override {}
};

}  // namespace

std::unique_ptr<DeviceBackend> make_cuda_device_backend() { return std::make_unique<NoCuda>(); }

std::string device_identity(Device device) {
  if (!device.is_cpu()) refuse();
  return {};
}

}  // namespace shoal
