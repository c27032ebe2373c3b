// Shares device memory between processes by CUDA IPC.
#include <cstring>

#include "shoal/collectives/backend/device/peer_memory.h"
#include "shoal/runtime/device/cuda_check.h"
#include "shoal/runtime/device/current_cuda_device.h"

namespace shoal::collectives::device {
namespace {

// The driver may refuse any of these calls. Data then takes another path.
void check(cudaError_t status, const char* call, Device device) {
  check_cuda(status, call, device, ErrorCode::unavailable);
}

class CudaPeerAccess final : public PeerAccess {
 public:
  explicit CudaPeerAccess(Device device)
      : device_(device),
        keeps_order_(attribute(cudaDevAttrGPUDirectRDMAWritesOrdering) >=
                     cudaGPUDirectRDMAWritesOrderingAllDevices) {}
  std::string name() const override { return "CUDA IPC"; }

  // Uses cudaMalloc, because memory from a stream-ordered pool has no IPC handle.
  void* allocate(std::size_t bytes) override {
    const CurrentCudaDevice current(device_);
    void* base = nullptr;
    count({.allocations = 1});
    check(cudaMalloc(&base, bytes), "cudaMalloc", device_);
    return base;
  }
  void deallocate(void* base) noexcept override {
    const CurrentCudaDevice current(device_, std::nothrow);
    count({.synchronizations = 1, .deallocations = 1});  // cudaFree() waits for the device
    (void)cudaFree(base);
  }

  Handle export_memory(void* base) override {
    static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(Handle));
    const CurrentCudaDevice current(device_);
    cudaIpcMemHandle_t native;
    check(cudaIpcGetMemHandle(&native, base), "cudaIpcGetMemHandle", device_);
    Handle handle;
    std::memcpy(handle.data(), &native, sizeof native);
    return handle;
  }
  void* open(const Handle& handle) override {
    const CurrentCudaDevice current(device_);
    cudaIpcMemHandle_t native;
    std::memcpy(&native, handle.data(), sizeof native);
    void* opened = nullptr;
    check(cudaIpcOpenMemHandle(&opened, native, cudaIpcMemLazyEnablePeerAccess),
          "cudaIpcOpenMemHandle", device_);
    return opened;
  }
  void close(void* opened) noexcept override {
    const CurrentCudaDevice current(device_, std::nothrow);
    (void)cudaIpcCloseMemHandle(opened);
  }
  void reach(Device peer) override {
    if (peer == device_) return;
    const CurrentCudaDevice current(device_);
    const cudaError_t status = cudaDeviceEnablePeerAccess(peer.index, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled)
      (void)cudaGetLastError();
    else
      check(status, "cudaDeviceEnablePeerAccess", device_);
  }

  void wait_for_device() override { device_backend(DeviceType::cuda).wait_for_device(device_); }

  // CUDA's programming guide, "GPUDirect RDMA": writes of network cards must be flushed, unless the
  // device orders them before work launched later.
  std::string cards_problem() const override {
    if (attribute(cudaDevAttrGPUDirectRDMASupported) == 0)
      return fmt::format("the driver of {} offers no GPUDirect RDMA", to_string(device_));
    if (!keeps_order_ && (attribute(cudaDevAttrGPUDirectRDMAFlushWritesOptions) &
                          cudaFlushGPUDirectRDMAWritesOptionHost) == 0)
      return fmt::format("{} neither orders GPUDirect RDMA writes nor lets the host flush them",
                         to_string(device_));
    return {};
  }
  void flush_cards_writes() override {
    if (keeps_order_) return;
    const CurrentCudaDevice current(device_);
    check(cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                             cudaFlushGPUDirectRDMAWritesToAllDevices),
          "cudaDeviceFlushGPUDirectRDMAWrites", device_);
  }
  void on_device(const std::function<void()>& body) override {
    const CurrentCudaDevice current(device_);
    body();
  }

 private:
  static void count(const DeviceStatistics& asked) {
    device_backend(DeviceType::cuda).count(asked);
  }
  int attribute(cudaDeviceAttr which) const {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, device_.index), "cudaDeviceGetAttribute", device_);
    return value;
  }

  Device device_;
  bool keeps_order_;
};

}  // namespace

std::unique_ptr<PeerAccess> make_cuda_peer_access(Device device) {
  return std::make_unique<CudaPeerAccess>(device);
}

}  // namespace shoal::collectives::device
