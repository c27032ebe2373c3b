#include "shoal/kernels/cuda/resources.h"

#include "shoal/kernels/cuda/architectures.h"
#include "shoal/kernels/kernels.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {

// The first capability with __shfl_sync and the other features that the kernels use.
constexpr int kOldestCapability = 70;

// Capability as one number; 70: 7.0.
cudaError_t read_capability(int index, int& capability) {
  int major = 0, minor = 0;
  cudaError_t status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
  capability = 10 * major + minor;
  return status;
}

[[noreturn]] void throw_no_code(const std::string& device, int capability) {
  throw Error(ErrorCode::unavailable,
              fmt::format("{} has compute capability {}.{}, for which this binary has no code: it "
                          "was compiled for {}",
                          device, capability / 10, capability % 10, cuda_architectures()),
              fmt::format("build Shoal with {}, or train on the CPU with --use_cpu true",
                          build_flag_for(capability)));
}

}  // namespace

void check_cuda(cudaError_t status, const char* operation) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  if (int device = 0, capability = 0; status == cudaErrorNoKernelImageForDevice &&
                                      cudaGetDevice(&device) == cudaSuccess &&
                                      read_capability(device, capability) == cudaSuccess)
    throw_no_code(to_string(Device::cuda(device)), capability);
  throw_error(status == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::internal,
              "{} on the GPU: {} ({})", operation, cudaGetErrorString(status),
              cudaGetErrorName(status));
}

namespace {
Device present(Device device) {
  device_backend(DeviceType::cuda).check_available(device);
  return device;
}
}  // namespace

CudaResources::CudaResources(Device device, MemoryResource* memory)
    : device_(present(device)), stream_(device), memory_(memory) {
  check_cuda(cudaSetDevice(device.index), "choosing the device");
  check_cuda(read_capability(device.index, capability_), "reading the capability");
  check_cuda(
      cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device.index),
      "counting multiprocessors");
  if (capability_ < kOldestCapability)
    throw Error(ErrorCode::unavailable,
                fmt::format("{} has compute capability {}.{}; these kernels need 7.0",
                            to_string(device), capability_ / 10, capability_ % 10),
                "use a V100 or later, or train on the CPU with --use_cpu true");
  if (!runs_on(cuda_architectures(), capability_)) throw_no_code(to_string(device), capability_);
  if (!memory_) {
    upstream_ = make_device_memory(device);
    pool_ = std::make_unique<PoolMemory>(*upstream_);
    memory_ = pool_.get();
  }
  // Unified addressing lets kernels write to it at this address.
  fault_ =
      new (device_backend(DeviceType::cuda).allocate_pinned(sizeof(FaultRecord))) FaultRecord{};
}

CudaResources::~CudaResources() {
  DeviceBackend& cuda = device_backend(DeviceType::cuda);
  try {
    cuda.synchronize(stream_.view());
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the device is lost
  }
  cuda.deallocate_pinned(fault_);
}

void CudaResources::copy(void* to, const void* from, std::size_t bytes, cudaStream_t native) const {
  device_backend(DeviceType::cuda).copy(to, from, bytes, {device_, native});
}

void CudaResources::wait_for(cudaStream_t native) const {
  device_backend(DeviceType::cuda).synchronize(Stream{device_, native});
}

cudaStream_t CudaResources::begin(Stream stream) {
  if (static_cast<volatile FaultRecord*>(fault_)->kind != 0) throw_fault();
  return static_cast<cudaStream_t>(stream.device.is_cpu() ? stream_.view().handle : stream.handle);
}

Buffer CudaResources::scratch(std::size_t bytes, Stream stream) const {
  return {*memory_, bytes, MemoryTag::workspace, stream.device.is_cpu() ? stream_.view() : stream};
}

void CudaResources::throw_fault() {
  const FaultRecord found = *fault_;
  *fault_ = FaultRecord{};
  SHOAL_CHECK(static_cast<Fault>(found.kind) != Fault::step_is_zero,
              "an update ran at step 0; updates count from 1, so advance the StepState first");
  const bool id = static_cast<Fault>(found.kind) == Fault::id_outside_table;
  throw_error(ErrorCode::invalid_argument, "{}: element {} is {}, outside [0, {})",
              id ? "embedding: ids" : "cross-entropy: targets", found.place, found.value,
              found.limit);
}

}  // namespace shoal::kernels
