// CUDA behind DeviceBackend, through the CUDA runtime API. Every call is checked; an error names
// the call, the device and CUDA's own words.
#include <cuda_runtime_api.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/backends.h"

namespace shoal {
namespace {

void check(cudaError_t status, const char* call, Device device = Device::cuda(0)) {
  if (status == cudaSuccess) return;
  const ErrorCode code = status == cudaErrorMemoryAllocation     ? ErrorCode::out_of_memory
                         : status == cudaErrorNoDevice           ? ErrorCode::unavailable
                         : status == cudaErrorInsufficientDriver ? ErrorCode::unavailable
                                                                 : ErrorCode::internal;
  (void)cudaGetLastError();  // a sticky error would be blamed on the next call
  throw_error(code, "{} on {}: {} ({})", call, to_string(device), cudaGetErrorString(status),
              cudaGetErrorName(status));
}

// Most calls act on the calling thread's current device: set it, and put it back.
class CurrentDevice {
 public:
  explicit CurrentDevice(Device device) {
    check(cudaGetDevice(&previous_), "cudaGetDevice", device);
    if (previous_ != device.index) check(cudaSetDevice(device.index), "cudaSetDevice", device);
  }
  ~CurrentDevice() { (void)cudaSetDevice(previous_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int previous_ = 0;
};

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }
cudaEvent_t native(void* event) { return static_cast<cudaEvent_t>(event); }

class CudaBackend final : public DeviceBackend {
 public:
  int count() const override {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    // A machine without GPU or driver has no devices; that is an answer, not a failure.
    if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) {
      (void)cudaGetLastError();
      return 0;
    }
    check(status, "cudaGetDeviceCount");
    return devices;
  }

  std::string describe(Device device) const override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device.index), "cudaGetDeviceProperties", device);
    return fmt::format("{}, {:.1f} GiB, compute capability {}.{}", properties.name,
                       static_cast<double>(properties.totalGlobalMem) / 0x1p30, properties.major,
                       properties.minor);
  }

  void* create_stream(Device device, StreamPriority priority) override {
    const CurrentDevice current(device);
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange",
          device);
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                       priority == StreamPriority::high ? greatest : least),
          "cudaStreamCreateWithPriority", device);
    return stream;
  }
  void destroy_stream(Stream stream) noexcept override { (void)cudaStreamDestroy(native(stream)); }
  void synchronize(Stream stream) override {
    const CurrentDevice current(stream.device);
    check(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize", stream.device);
  }

  void* create_event(Device device) override {
    const CurrentDevice current(device);
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate", device);
    return event;
  }
  void destroy_event(Device, void* event) noexcept override {
    (void)cudaEventDestroy(native(event));
  }
  void record(void* event, Stream stream) override {
    const CurrentDevice current(stream.device);
    check(cudaEventRecord(native(event), native(stream)), "cudaEventRecord", stream.device);
  }
  bool query(Device device, void* event) override {
    const cudaError_t status = cudaEventQuery(native(event));
    if (status == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    check(status, "cudaEventQuery", device);
    return true;
  }
  void wait(Stream stream, void* event) override {
    const CurrentDevice current(stream.device);
    check(cudaStreamWaitEvent(native(stream), native(event), 0), "cudaStreamWaitEvent",
          stream.device);
  }
  void synchronize(Device device, void* event) override {
    check(cudaEventSynchronize(native(event)), "cudaEventSynchronize", device);
  }
  double elapsed_ms(Device device, void* start, void* stop) override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, native(start), native(stop)), "cudaEventElapsedTime",
          device);
    return static_cast<double>(milliseconds);
  }

  void copy(void* destination, const void* source, std::size_t bytes, Stream stream) override {
    if (bytes == 0) return;
    const CurrentDevice current(stream.device);
    check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, native(stream)),
          "cudaMemcpyAsync", stream.device);
  }
  void fill(void* destination, int byte, std::size_t bytes, Stream stream) override {
    if (bytes == 0) return;
    const CurrentDevice current(stream.device);
    check(cudaMemsetAsync(destination, byte, bytes, native(stream)), "cudaMemsetAsync",
          stream.device);
  }

  void* allocate(Device device, std::size_t bytes, Stream stream) override {
    const CurrentDevice current(device);
    void* pointer = nullptr;
    check(cudaMallocAsync(&pointer, bytes, native(stream)), "cudaMallocAsync", device);
    return pointer;
  }
  void deallocate(Device, void* pointer, Stream stream) noexcept override {
    (void)cudaFreeAsync(pointer, native(stream));
  }
};

}  // namespace

std::unique_ptr<DeviceBackend> make_cuda_device_backend() {
  return std::make_unique<CudaBackend>();
}

}  // namespace shoal
