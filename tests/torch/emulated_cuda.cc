#include "torch/emulated_cuda.h"

#include <array>
#include <mutex>

#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

// The backend checks whether a thread has Python; this program has none.
extern "C" {
struct _ts;
int Py_IsInitialized();
int PyGILState_Check();
_ts* PyEval_SaveThread();
void PyEval_RestoreThread(_ts*);
int Py_IsInitialized() { return 0; }
int PyGILState_Check() { return 0; }
_ts* PyEval_SaveThread() { return nullptr; }
void PyEval_RestoreThread(_ts*) {}
}

namespace shoal::test {
namespace {

constexpr std::size_t kDevices = 16;

DeviceBackend& cuda() { return device_backend(DeviceType::cuda); }
Device ours(c10::Device device) { return Device::cuda(device.index()); }
std::size_t place(c10::Device device) { return static_cast<std::size_t>(device.index()); }

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams{};

// The handle of stream 0, which lives until the process ends.
void* default_stream(c10::Device device) {
  static std::mutex mutex;
  static std::array<void*, kDevices> streams{};
  const std::lock_guard lock(mutex);
  void*& stream = streams[place(device)];
  if (!stream) stream = cuda().create_stream(ours(device), StreamPriority::normal);
  return stream;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {c10::kCUDA, std::exchange(current_device, device.index())};
  }
  c10::Device getDevice() const override { return {c10::kCUDA, current_device}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    const c10::Device of = device.has_index() ? device : getDevice();
    return c10::Stream(c10::Stream::UNSAFE, of, current_streams[place(of)]);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    void* const made = cuda().create_stream(ours(device), StreamPriority::normal);
    return c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(made));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto& current = current_streams[place(stream.device())];
    return c10::Stream(c10::Stream::UNSAFE, stream.device(), std::exchange(current, stream.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(cuda().count());
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (!*event) *event = cuda().create_event(ours(stream.device()), EventKind::order);
    cuda().record(*event, handle_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    cuda().wait(handle_of(stream), event);
  }
  bool queryEvent(void* event) const override { return cuda().query(ours(getDevice()), event); }
  void destroyEvent(void* event, const c10::DeviceIndex index) const noexcept override {
    cuda().destroy_event(Device::cuda(index), event);
  }
  void synchronizeEvent(void* event) const override {
    cuda().synchronize(ours(getDevice()), event);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    cuda().synchronize(handle_of(stream));
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// Allocates on the current stream, like PyTorch's caching allocator.
struct DeviceAllocator final : c10::Allocator {
  struct Block {
    Stream stream;
    void* pointer;
  };
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(c10::kCUDA, current_device);
    if (bytes == 0) return {nullptr, device};
    const Stream stream = handle_of(current_stream(device));
    auto* const block = new Block{stream, cuda().allocate(stream.device, bytes, stream)};
    const auto free = [](void* context) {
      const std::unique_ptr<Block> own(static_cast<Block*>(context));
      cuda().deallocate(own->stream.device, own->pointer, own->stream);
    };
    return {block->pointer, block, free, device};
  }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "DeviceAllocator::copy_data");
  }
};
DeviceAllocator allocator;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, &allocator, kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &allocator, kKeys,
                                           c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, sizes, strides, offset);
}

at::Tensor view(const at::Tensor& tensor, at::IntArrayRef sizes) {
  return at::native::view(tensor, sizes);
}

// The memory of a device tensor as a host tensor with the same strides.
at::Tensor on_host(const at::Tensor& tensor) {
  const Stream stream = handle_of(current_stream(tensor.device()));
  std::int64_t reach = tensor.numel() > 0 ? 1 : 0;
  for (std::int64_t i = 0; reach && i < tensor.dim(); ++i)
    reach += (tensor.size(i) - 1) * tensor.stride(i);
  at::Tensor memory = at::empty({reach}, tensor.options().device(at::kCPU));
  if (reach) cuda().copy(memory.data_ptr(), tensor.data_ptr(), memory.nbytes(), stream);
  cuda().synchronize(stream);
  return memory.as_strided(tensor.sizes(), tensor.strides(), 0);
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool) {
  if (to.device() == from.device() && to.scalar_type() == from.scalar_type() &&
      to.sizes() == from.sizes() && to.is_contiguous() && from.is_contiguous()) {
    queue_copy(to, from);
    return to;
  }
  const at::Tensor source = from.is_cpu() ? from : on_host(from);
  if (to.is_cpu()) return to.copy_(source);
  at::Tensor target = on_host(to);
  target.copy_(source);
  const Stream stream = handle_of(current_stream(to.device()));
  cuda().copy(to.data_ptr(), target.data_ptr(), target.storage().nbytes(), stream);
  cuda().synchronize(stream);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  return to.copy_(from);
}

void by_the_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  at::native::cpu_fallback(operation, stack);
}

}  // namespace

c10::Stream current_stream(c10::Device device) { return Guard().getStream(device); }

Stream handle_of(c10::Stream stream) {
  return {ours(stream.device()), stream.id() == 0 ? default_stream(stream.device())
                                                  // NOLINTNEXTLINE(performance-no-int-to-ptr)
                                                  : reinterpret_cast<void*>(stream.id())};
}

void queue_fill(const at::Tensor& tensor, int byte) {
  cuda().fill(tensor.data_ptr(), byte, tensor.nbytes(), handle_of(current_stream(tensor.device())));
}

void queue_copy(const at::Tensor& to, const at::Tensor& from) {
  cuda().copy(to.data_ptr(), from.const_data_ptr(), to.nbytes(),
              handle_of(current_stream(to.device())));
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("copy_", &copy);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
}
TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>());
}

}  // namespace shoal::test
