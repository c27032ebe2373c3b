// The shim's devices as host memory. Streams never wait. An event is done when all earlier launches
// of its rank are done.
#include <cstring>
#include <memory>
#include <new>

#include "device.h"
#include "shim.h"
#include <fmt/format.h>

#include "shoal/kernels/kernels.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/backends.h"
#include "shoal/runtime/device/current_cuda_device.h"
#include "shoal/runtime/device/identity.h"

namespace shoal::test::nccl_shim {
namespace {

// An event is done when all of its rank's earlier launches are done.
struct ShimEvent {
  int device = 0;
  std::int64_t launched = 0;
};

class ShimBackend final : public DeviceBackend {
 public:
  ShimBackend() : host_(make_host_device_backend()) {}
  int count() const override { return kDevices; }
  std::string describe(Device) const override { return "a shim"; }
  void check_available(Device device) const override {
    SHOAL_CHECK(device.index < kDevices, "device {}", device.index);
  }
  void* create_stream(Device, StreamPriority) override { return nullptr; }
  void destroy_stream(Stream) noexcept override {}
  void synchronize(Stream) override {}
  void* create_event(Device device, EventKind) override { return new ShimEvent{device.index}; }
  void destroy_event(Device, void* event) noexcept override {
    delete static_cast<ShimEvent*>(event);
  }
  void record(void* event, Stream) override {
    auto* e = static_cast<ShimEvent*>(event);
    e->launched = launched_and_finished(e->device).first;
  }
  bool query(Device, void* event) override {
    const auto* e = static_cast<ShimEvent*>(event);
    return launched_and_finished(e->device).second >= e->launched;
  }
  void wait(Stream, void*) override {}
  void synchronize(Device, void*) override {}
  double elapsed_ms(Device, void*, void*) override { return 0; }
  void copy(void* to, const void* from, std::size_t bytes, Stream) override {
    host_->copy(to, from, bytes, {});
  }
  void fill(void* to, int byte, std::size_t bytes, Stream) override {
    host_->fill(to, byte, bytes, {});
  }
  void* allocate(Device, std::size_t bytes, Stream) override {
    return host_->allocate({}, bytes, {});
  }
  void deallocate(Device, void* pointer, Stream) noexcept override {
    host_->deallocate({}, pointer, {});
  }
  void* allocate_pinned(std::size_t bytes) override { return host_->allocate_pinned(bytes); }
  void deallocate_pinned(void* pointer) noexcept override { host_->deallocate_pinned(pointer); }

 private:
  std::unique_ptr<DeviceBackend> host_;
};

}  // namespace

bool queue_launch(cudaStream_t, const BeginLaunch& begin) {
  begin();
  return true;
}
bool is_captured(cudaStream_t) { return false; }
void* take_memory(std::size_t bytes) { return ::operator new(bytes, std::align_val_t{256}); }
void give_memory(void* pointer) { ::operator delete(pointer, std::align_val_t{256}); }

}  // namespace shoal::test::nccl_shim

cudaError_t cudaDeviceSynchronize() {
  shoal::test::nccl_shim::record_memory_call("deviceSynchronize");
  return cudaSuccess;
}

// Replaces runtime/device's definitions, so the linker leaves those in their archive. No device is
// current, because the memory is host memory.
shoal::CurrentCudaDevice::CurrentCudaDevice(Device) {}
shoal::CurrentCudaDevice::CurrentCudaDevice(Device, std::nothrow_t) noexcept {}
shoal::CurrentCudaDevice::~CurrentCudaDevice() {}
void shoal::use_cuda_device_with_context() noexcept {}

std::string shoal::device_identity(Device device) {
  return fmt::format("GPU-shim-{}", device.index);
}

std::unique_ptr<shoal::DeviceBackend> shoal::make_cuda_device_backend() {
  return std::make_unique<shoal::test::nccl_shim::ShimBackend>();
}

// Replaces the kernels that scale a rank's own numbers, which are in host memory here.
std::unique_ptr<shoal::kernels::Kernels> shoal::kernels::make_cuda_kernels(
    const CudaKernelOptions&) {
  return make_cpu_kernels();
}
