#include "support/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "shoal/runtime/base/error.h"

namespace shoal::testing {
namespace {

Device& device_of_thread() {
  thread_local Device device = Device::cuda(0);
  return device;
}

// compute-sanitizer cannot see the bounds of blocks in a pool, so no pool is used. AddressSanitizer
// learns these bounds from runtime/memory/block_marks.h.
bool exact() {
#ifdef __SANITIZE_ADDRESS__
  return false;
#else
  return sanitizing();
#endif
}

// One thread's device kernels, and the device memory that mirrors its tests' host memory.
struct DeviceRoom {
  std::unique_ptr<MemoryResource> memory = make_device_memory(device_of_thread());
  PoolMemory pool{*memory};
  MemoryResource& mirrors = exact() ? *memory : pool;
  std::unique_ptr<kernels::Kernels> kernels =
      kernels::make_cuda_kernels({.device = device_of_thread(),
                                  .memory = exact() ? memory.get() : nullptr,
                                  .cache_directory = {}});
};

DeviceRoom& room() {
  thread_local DeviceRoom made;
  return made;
}

class ThreadsKernels final : public kernels::Kernels {
 public:
  kernels::MatmulKernels& matmul() override { return all_.matmul(); }
  kernels::ElementwiseKernels& elementwise() override { return all_.elementwise(); }
  kernels::NormKernels& norm() override { return all_.norm(); }
  kernels::AttentionKernels& attention() override { return all_.attention(); }
  kernels::LossKernels& loss() override { return all_.loss(); }
  kernels::EmbeddingKernels& embedding() override { return all_.embedding(); }
  kernels::OptimizerKernels& optimizer() override { return all_.optimizer(); }
  kernels::ReductionKernels& reduction() override { return all_.reduction(); }
  Device device() const override { return all_.device(); }
  Stream stream() const override { return all_.stream(); }
  std::string describe() const override { return all_.describe(); }
  void check_computes(DType dtype) const override { all_.check_computes(dtype); }

 private:
  kernels::Kernels& all_ = *room().kernels;
};

// Keeps pinned blocks for reuse, because pinning is slow in the driver. A sanitizer's run keeps
// none, so that accesses to freed memory are found.
class PooledPinnedMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override {
    return kept_.allocate(bytes, tag, stream);
  }
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag,
                  Stream stream) noexcept override {
    // Host writes of a later owner must not overtake kernels that still use the block.
    try {
      synchronise();
    } catch (...) {  // NOLINT(bugprone-empty-catch): reading a result reports it
    }
    kept_.deallocate(pointer, bytes, tag, stream);
  }
  Device device() const override { return Device::cpu(); }
  std::string name() const override { return kept_.name(); }

 private:
  std::unique_ptr<MemoryResource> pinned_ = make_pinned_memory();
  PoolMemory pool_{*pinned_};
  MemoryResource& kept_ = exact() ? *pinned_ : pool_;
};

// Pooled memory of one device. Tensors without a stream are ordered on the kernels' stream.
class PooledDeviceMemory final : public MemoryResource {
 public:
  PooledDeviceMemory() : stream_(room().kernels->stream()) {}
  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override {
    return kept_.allocate(bytes, tag, stream.handle ? stream : stream_);
  }
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag,
                  Stream stream) noexcept override {
    kept_.deallocate(pointer, bytes, tag, stream.handle ? stream : stream_);
  }
  Device device() const override { return upstream_->device(); }
  std::string name() const override { return kept_.name(); }

 private:
  const Stream stream_;
  std::unique_ptr<MemoryResource> upstream_ = make_device_memory(stream_.device);
  PoolMemory pool_{*upstream_};
  MemoryResource& kept_ = exact() ? *upstream_ : pool_;
};

Device& place() {
  thread_local Device device = on_cuda() ? device_of_thread() : Device::cpu();
  return device;
}

constexpr std::size_t kAlignment = 256;

}  // namespace

bool on_cuda() {
  static const bool cuda = [] {
    const char* set = std::getenv("SHOAL_TEST_DEVICE");
    const std::string_view device = set ? set : "cpu";
    if (device != "cpu" && device != "cuda")
      throw_error(ErrorCode::invalid_argument, "SHOAL_TEST_DEVICE is '{}'; it may be cpu or cuda",
                  device);
    return device == "cuda";
  }();
  return cuda;
}

bool sanitizing() {
  static const bool set = on_cuda() && std::getenv("SHOAL_TEST_SANITIZE") != nullptr;
  return set;
}

std::unique_ptr<kernels::Kernels> make_test_kernels(int threads) {
  if (on_cuda()) return std::make_unique<ThreadsKernels>();
  return kernels::make_cpu_kernels({.threads = threads});
}

std::unique_ptr<MemoryResource> make_test_memory() {
  if (on_cuda()) return std::make_unique<PooledPinnedMemory>();
  return make_host_memory();
}

std::unique_ptr<MemoryResource> make_test_device_memory() {
  if (on_cuda()) return std::make_unique<PooledDeviceMemory>();
  return make_host_memory();
}

Tensor on_host(const Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) {
    synchronise();
    return tensor;
  }
  static MemoryResource& memory = *make_host_memory().release();  // outlives every tensor
  Tensor copy = Tensor::empty(tensor.shape(), tensor.dtype(), memory, MemoryTag::data);
  copy_to_test(copy.view().data, tensor);
  return copy;
}

void use_device_of(int rank) {
  if (on_cuda())
    device_of_thread() = Device::cuda(rank % std::max(device_backend(DeviceType::cuda).count(), 1));
}

void synchronise() {
  if (on_cuda()) device_backend(DeviceType::cuda).synchronize(room().kernels->stream());
}

Stream test_stream() { return on_cuda() ? room().kernels->stream() : Stream{}; }

void copy_to_test(void* values, const Tensor& tensor) {
  const Stream stream = test_stream();
  DeviceBackend& backend = device_backend(stream.device.type);
  if (tensor.count() > 0) backend.copy(values, tensor.const_view().data, tensor.bytes(), stream);
  backend.synchronize(stream);
}

void copy_from_test(const Tensor& tensor, const void* values) {
  const Stream stream = test_stream();
  DeviceBackend& backend = device_backend(stream.device.type);
  if (tensor.count() > 0) backend.copy(tensor.view().data, values, tensor.bytes(), stream);
  backend.synchronize(stream);
}

Mirrored::Mirrored(std::size_t bytes, std::byte fill)
    : bytes_(bytes), host_(bytes + kAlignment, fill) {}

Mirrored::Mirrored(const Mirrored& other) : Mirrored(other.bytes_, std::byte{0}) {
  std::memcpy(host(), other.host(), bytes_);
}

Mirrored& Mirrored::operator=(const Mirrored& other) {
  if (this != &other) *this = Mirrored(other);
  return *this;
}

std::byte* Mirrored::host() const {
  const auto start = reinterpret_cast<std::uintptr_t>(host_.data());
  auto* base =
      const_cast<std::byte*>(host_.data()) + (kAlignment - start % kAlignment) % kAlignment;
  if (newer_ == Newer::device) {
    const Stream stream = room().kernels->stream();
    DeviceBackend& backend = device_backend(DeviceType::cuda);
    backend.copy(base, device_.data(), bytes_, stream);
    backend.synchronize(stream);
    newer_ = Newer::host;
  }
  return base;
}

std::byte* Mirrored::device() const {
  if (newer_ == Newer::host) {
    const std::byte* from = host();
    const Stream stream = room().kernels->stream();
    if (!device_)
      device_ = Buffer(room().mirrors, std::max(bytes_, std::size_t{1}), MemoryTag::data, stream);
    DeviceBackend& backend = device_backend(DeviceType::cuda);
    backend.copy(device_.data(), from, bytes_, stream);
    backend.synchronize(stream);  // the caller may change or free `from` next
    newer_ = Newer::device;
  }
  return static_cast<std::byte*>(device_.data());
}

std::byte* Mirrored::here() const { return place().is_cpu() ? host() : device(); }

At::At(Device device) : previous_(place()) { place() = device; }
At::~At() { place() = previous_; }
Device here() { return place(); }

}  // namespace shoal::testing
