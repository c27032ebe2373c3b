// CUDA's DeviceBackend, through the CUDA runtime API. Every call is checked; an error names the
// call, the device and CUDA's message.
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/backends.h"
#include "shoal/runtime/device/cuda_check.h"
#include "shoal/runtime/device/current_cuda_device.h"
#include "shoal/runtime/device/identity.h"

namespace shoal {
namespace {

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }
cudaEvent_t native(void* event) { return static_cast<cudaEvent_t>(event); }

// The first driver with kernel parameters above 4 KiB, which tables of tensors need (CUDA 12.1's
// release notes). CUDA 12 itself runs with every driver from 12.0 on ("CUDA Compatibility").
constexpr int kOldestDriver = 12010;

// Version number as text: 13000 is "13.0".
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// True for host memory that is not pinned. The driver copies it through its own buffer and may
// block.
bool is_pageable(const void* pointer) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, pointer) == cudaSuccess)
    return attributes.type == cudaMemoryTypeUnregistered;
  (void)cudaGetLastError();
  return true;
}

class CudaBackend final : public DeviceBackend {
 public:
  int count() const override {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status == cudaSuccess) return devices;
    // A machine without a usable GPU has no devices; check_available() gives the reason.
    (void)cudaGetLastError();
    return 0;
  }

  std::string describe(Device device) const override {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, device.index), "cudaGetDeviceProperties",
               device);
    return fmt::format("{}, {:.1f} GiB, compute capability {}.{}", properties.name,
                       static_cast<double>(properties.totalGlobalMem) / 0x1p30, properties.major,
                       properties.minor);
  }

  void check_available(Device device) const override {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (status == cudaSuccess && driver < kOldestDriver)
      throw Error(
          ErrorCode::unavailable,
          fmt::format("the NVIDIA driver knows CUDA {}; Shoal needs {} (driver 530) or later",
                      version_text(driver), version_text(kOldestDriver)),
          "update the driver, or use the device cpu");
    if (status == cudaSuccess && device.index >= 0 && device.index < devices) return;
    (void)cudaGetLastError();
    if (status == cudaErrorInsufficientDriver && driver == 0)
      throw Error(
          ErrorCode::unavailable,
          fmt::format("{} is asked for, but this machine has no NVIDIA driver", to_string(device)),
          "see what nvidia-smi says, or use the device cpu");
    if (status == cudaErrorInsufficientDriver)
      throw Error(ErrorCode::unavailable,
                  fmt::format("the NVIDIA driver knows CUDA {}; this build of Shoal needs {}",
                              version_text(driver), version_text(runtime)),
                  "update the driver, or build Shoal with an older CUDA toolkit");
    if (status != cudaSuccess)
      throw Error(
          ErrorCode::unavailable,
          fmt::format("{} is asked for, but there is no usable CUDA device: {} ({})",
                      to_string(device), cudaGetErrorString(status), cudaGetErrorName(status)),
          "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the device cpu");
    throw Error(ErrorCode::unavailable,
                fmt::format("{} is asked for, but there {} {} CUDA device{}", to_string(device),
                            devices == 1 ? "is" : "are", devices, devices == 1 ? "" : "s"),
                "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the device cpu");
  }

  DeviceStatistics statistics() const override {
    return {synchronizations_, blocking_copies_, allocations_, deallocations_};
  }
  void count(const DeviceStatistics& asked) override {
    synchronizations_ += asked.synchronizations;
    blocking_copies_ += asked.blocking_copies;
    allocations_ += asked.allocations;
    deallocations_ += asked.deallocations;
  }

  void* create_stream(Device device, StreamPriority priority) override {
    const CurrentCudaDevice current(device);
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest),
               "cudaDeviceGetStreamPriorityRange", device);
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                            priority == StreamPriority::high ? greatest : least),
               "cudaStreamCreateWithPriority", device);
    return stream;
  }
  // Synchronizes first: CUDA may reuse the handle for a new stream, and memory pools identify
  // streams by handle.
  void destroy_stream(Stream stream) noexcept override {
    const CurrentCudaDevice current(stream.device, std::nothrow);
    ++synchronizations_;
    (void)cudaStreamSynchronize(native(stream));
    (void)cudaStreamDestroy(native(stream));
  }
  void synchronize(Stream stream) override {
    const CurrentCudaDevice current(stream.device);
    ++synchronizations_;
    check_cuda(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize", stream.device);
  }
  void wait_for_device(Device device) override {
    const CurrentCudaDevice current(device);
    Captures& captures = captures_of(device);
    const std::scoped_lock lock(captures.mutex);
    if (!captures.streams.empty())
      throw Error(
          ErrorCode::internal,
          fmt::format("{} was to be waited for while a step is captured there", to_string(device)),
          "run the step once before it is captured, so that it finds its memory");
    wait_for_all(device);
  }

  void* create_event(Device device, EventKind kind) override {
    const CurrentCudaDevice current(device);
    cudaEvent_t event = nullptr;
    const unsigned flags = kind == EventKind::timing ? cudaEventDefault : cudaEventDisableTiming;
    check_cuda(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags", device);
    return event;
  }
  void destroy_event(Device device, void* event) noexcept override {
    const CurrentCudaDevice current(device, std::nothrow);
    (void)cudaEventDestroy(native(event));
  }
  void record(void* event, Stream stream) override {
    const CurrentCudaDevice current(stream.device);
    check_cuda(cudaEventRecord(native(event), native(stream)), "cudaEventRecord", stream.device);
  }
  bool query(Device device, void* event) override {
    const CurrentCudaDevice current(device);
    const cudaError_t status = cudaEventQuery(native(event));
    if (status == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    check_cuda(status, "cudaEventQuery", device);
    return true;
  }
  void wait(Stream stream, void* event) override {
    const CurrentCudaDevice current(stream.device);
    check_cuda(cudaStreamWaitEvent(native(stream), native(event), 0), "cudaStreamWaitEvent",
               stream.device);
  }
  void synchronize(Device device, void* event) override {
    const CurrentCudaDevice current(device);
    ++synchronizations_;
    check_cuda(cudaEventSynchronize(native(event)), "cudaEventSynchronize", device);
  }
  double elapsed_ms(Device device, void* start, void* stop) override {
    const CurrentCudaDevice current(device);
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, native(start), native(stop)),
               "cudaEventElapsedTime of events made for timing", device);
    return static_cast<double>(milliseconds);
  }

  void copy(void* destination, const void* source, std::size_t bytes, Stream stream) override {
    if (bytes == 0) return;
    const CurrentCudaDevice current(stream.device);
    if (is_pageable(source) || is_pageable(destination)) ++blocking_copies_;
    check_cuda(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, native(stream)),
               "cudaMemcpyAsync", stream.device);
    settle(stream);
  }
  void fill(void* destination, int byte, std::size_t bytes, Stream stream) override {
    if (bytes == 0) return;
    const CurrentCudaDevice current(stream.device);
    check_cuda(cudaMemsetAsync(destination, byte, bytes, native(stream)), "cudaMemsetAsync",
               stream.device);
    settle(stream);
  }

  // Relaxed mode allows driver calls of other libraries during capture. Waiting for the device is
  // an error in every mode (CUDA Programming Guide, "Prohibited and Unhandled Operations"), so
  // Shoal does not wait for a device while one of its streams is captured.
  void begin_capture(Stream stream) override {
    const CurrentCudaDevice current(stream.device);
    Captures& captures = captures_of(stream.device);
    const std::scoped_lock lock(captures.mutex);
    check_cuda(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeRelaxed),
               "cudaStreamBeginCapture", stream.device);
    captures.streams.insert(stream.handle);
  }
  void* end_capture(Stream stream) override {
    const CurrentCudaDevice current(stream.device);
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(native(stream), &graph);
    after_capture(stream);
    check_cuda(ended, "cudaStreamEndCapture", stream.device);
    cudaGraphExec_t made = nullptr;
    std::size_t nodes = 0;
    cudaError_t status = cudaGraphGetNodes(graph, nullptr, &nodes);
    if (status == cudaSuccess && nodes > 0) status = cudaGraphInstantiate(&made, graph, 0);
    (void)cudaGraphDestroy(graph);
    check_cuda(status, "cudaGraphInstantiate", stream.device);
    return made;
  }
  bool is_captured(Stream stream) const override {
    if (!stream.handle) return false;
    const CurrentCudaDevice current(stream.device);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(native(stream), &capture), "cudaStreamIsCapturing",
               stream.device);
    return capture != cudaStreamCaptureStatusNone;
  }
  void abandon_capture(Stream stream) noexcept override {
    const CurrentCudaDevice current(stream.device, std::nothrow);
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(native(stream), &graph) == cudaSuccess && graph)
      (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    after_capture(stream);
  }
  void launch_graph(void* graph, Stream stream) override {
    const CurrentCudaDevice current(stream.device);
    check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), native(stream)),
               "cudaGraphLaunch", stream.device);
  }
  void destroy_graph(void* graph) noexcept override {
    use_cuda_device_with_context();
    (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
  }

  void* allocate(Device device, std::size_t bytes, Stream stream) override {
    const CurrentCudaDevice current(device);
    // The allocation would become a graph node, whose memory exists only while the graph runs.
    if (is_captured(stream))
      throw Error(ErrorCode::internal,
                  fmt::format("{} bytes were asked of {} while a step is being captured", bytes,
                              to_string(device)),
                  "run the step once before it is captured, so that its pool holds them");
    const cudaMemPool_t pool = pool_of(device);
    ++allocations_;
    void* pointer = nullptr;
    cudaError_t status = cudaMallocFromPoolAsync(&pointer, bytes, pool, native(stream));
    if (status == cudaErrorMemoryAllocation) {
      // Freed memory may not be available yet, or the pool may hold memory that other allocations
      // (pinned, IPC, other libraries') need.
      (void)cudaGetLastError();
      Captures& captures = captures_of(device);
      const std::scoped_lock lock(captures.mutex);
      if (captures.streams.empty()) wait_for_all(device);
      check_cuda(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo", device);
      status = cudaMallocFromPoolAsync(&pointer, bytes, pool, native(stream));
    }
    check_cuda(status, "cudaMallocFromPoolAsync", device);
    if (!stream.handle) synchronize(Stream{device, nullptr});  // any stream may use the memory
    return pointer;
  }
  void deallocate(Device device, void* pointer, Stream stream) noexcept override try {
    const CurrentCudaDevice current(device);
    ++deallocations_;
    if (stream.handle && !is_captured(stream)) {
      (void)cudaFreeAsync(pointer,
                          native(stream));  // allowed while another thread waits for the device
      return;
    }
    Captures& captures = captures_of(device);
    const std::scoped_lock lock(captures.mutex);
    if (!captures.streams.empty()) {
      captures.freed.push_back(pointer);
      return;
    }
    if (!stream.handle) wait_for_all(device);
    (void)cudaFreeAsync(pointer, native(stream));
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is lost
  }

  MemoryInfo memory_info(Device device) const override {
    const CurrentCudaDevice current(device);
    MemoryInfo info;
    check_cuda(cudaMemGetInfo(&info.free, &info.total), "cudaMemGetInfo", device);
    return info;
  }

  void* allocate_pinned(std::size_t bytes) override {
    ++allocations_;
    use_cuda_device_with_context();
    void* pointer = nullptr;
    check_cuda(cudaHostAlloc(&pointer, bytes, cudaHostAllocPortable), "cudaHostAlloc",
               Device::cuda(0));
    return pointer;
  }
  void deallocate_pinned(void* pointer) noexcept override {
    ++deallocations_;
    use_cuda_device_with_context();
    (void)cudaFreeHost(pointer);
  }

 private:
  // Streams of a device that are being captured, and memory freed during these captures. The lock
  // is never held while a caller's code runs.
  struct Captures {
    std::mutex mutex;
    std::set<void*> streams;
    std::vector<void*> freed;
  };
  Captures& captures_of(Device device) {
    const std::scoped_lock lock(mutex_);
    return captures_[device.index];
  }

  // When the last capture has ended, frees the memory that could not be freed earlier.
  void after_capture(Stream stream) noexcept try {
    const CurrentCudaDevice current(stream.device);
    Captures& captures = captures_of(stream.device);
    const std::scoped_lock lock(captures.mutex);
    captures.streams.erase(stream.handle);
    if (!captures.streams.empty() || captures.freed.empty()) return;
    wait_for_all(stream.device);
    for (void* const pointer : captures.freed) (void)cudaFreeAsync(pointer, nullptr);
    captures.freed.clear();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is lost
  }

  void settle(Stream stream) {
    if (!stream.handle) synchronize(stream);
  }

  // Requires the captures' mutex and that no stream is being captured.
  void wait_for_all(Device device) {
    ++synchronizations_;
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize", device);
  }

  // One pool per device. It keeps freed memory. CUDA's default pool would return it to the system
  // at every synchronization and map it again later.
  cudaMemPool_t pool_of(Device device) {
    const std::scoped_lock lock(mutex_);
    cudaMemPool_t& pool = pools_[device.index];
    if (pool) return pool;
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device.index;
    cudaMemPool_t made = nullptr;
    check_cuda(cudaMemPoolCreate(&made, &properties), "cudaMemPoolCreate", device);
    std::uint64_t everything = UINT64_MAX;
    check_cuda(cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &everything),
               "cudaMemPoolSetAttribute", device);
    return pool = made;
  }

  std::mutex mutex_;
  std::map<int, cudaMemPool_t> pools_;  // by device; they live until the process ends
  std::map<int, Captures> captures_;    // by device
  mutable std::atomic<std::int64_t> synchronizations_{0}, blocking_copies_{0}, allocations_{0},
      deallocations_{0};
};

}  // namespace

std::unique_ptr<DeviceBackend> make_cuda_device_backend() {
  return std::make_unique<CudaBackend>();
}

std::string device_identity(Device device) {
  if (device.is_cpu()) return {};
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, device.index), "cudaGetDeviceProperties", device);
  std::string text = "GPU";
  for (std::size_t i = 0; i < sizeof properties.uuid.bytes; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  return text;
}

}  // namespace shoal
