#include "shoal/nn/autograd/device_values.h"

#include <cstdint>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// Uses the backend of the stream's device, even for host memory, because the stream orders the
// copy.
void copy_and_wait(void* to, const void* from, std::size_t bytes, Stream stream) {
  DeviceBackend& backend = device_backend(stream.device.type);
  backend.copy(to, from, bytes, stream);
  backend.synchronize(stream);
}

template <typename T>
T read_as(const Tensor& scalar, Stream stream) {
  T value{};
  copy_and_wait(&value, scalar.const_view().data, sizeof value, stream);
  return value;
}

template <typename T>
void write_as(double value, const Tensor& scalar, Stream stream) {
  const T number = static_cast<T>(value);
  copy_and_wait(scalar.view().data, &number, sizeof number, stream);
}

void check_scalar(const Tensor& scalar) {
  SHOAL_CHECK(scalar.defined() && scalar.count() == 1, "a number is read from a tensor {}",
              scalar.defined() ? to_string(scalar.shape()) : "that is undefined");
}

}  // namespace

double read_scalar(const Tensor& scalar, Stream stream) {
  check_scalar(scalar);
  switch (scalar.dtype()) {
    case DType::f32:
      return static_cast<double>(read_as<float>(scalar, stream));
    case DType::f64:
      return read_as<double>(scalar, stream);
    case DType::i32:
      return static_cast<double>(read_as<std::int32_t>(scalar, stream));
    default:
      throw_error(ErrorCode::internal, "a number of {} is read", to_string(scalar.dtype()));
  }
}

void write_scalar(double value, const Tensor& scalar, Stream stream) {
  check_scalar(scalar);
  switch (scalar.dtype()) {
    case DType::f32:
      return write_as<float>(value, scalar, stream);
    case DType::f64:
      return write_as<double>(value, scalar, stream);
    default:
      throw_error(ErrorCode::internal, "a number of {} is written", to_string(scalar.dtype()));
  }
}

void copy_to_host(void* values, const Tensor& tensor, Stream stream) {
  if (tensor.bytes() == 0) return;
  copy_and_wait(values, tensor.const_view().data, tensor.bytes(), stream);
}

Tensor copied_to_host(const Tensor& tensor, MemoryResource& host, Stream stream) {
  Tensor copy = Tensor::empty(tensor.shape(), tensor.dtype(), host, MemoryTag::workspace);
  copy_to_host(copy.view().data, tensor, stream);
  return copy;
}

Tensor on_host(const Tensor& tensor, MemoryResource& host, Stream stream) {
  if (!tensor.device().is_cpu()) return copied_to_host(tensor, host, stream);
  if (!stream.device.is_cpu()) device_backend(stream.device.type).synchronize(stream);
  return tensor;
}

StepStateMemory::StepStateMemory(kernels::Kernels& kernels, MemoryResource& memory,
                                 const kernels::StepState& initial)
    : stream_(kernels.stream()),
      bytes_(Tensor::empty({sizeof(kernels::StepState)}, DType::u8, memory, MemoryTag::workspace,
                           stream_)) {
  write(initial);
}

kernels::StepState* StepStateMemory::pointer() const {
  return static_cast<kernels::StepState*>(bytes_.view().data);
}

kernels::StepState StepStateMemory::read() const {
  kernels::StepState state;
  copy_and_wait(&state, bytes_.const_view().data, sizeof state, stream_);
  return state;
}

void StepStateMemory::write(const kernels::StepState& state) {
  copy_and_wait(bytes_.view().data, &state, sizeof state, stream_);
}

}  // namespace shoal::nn
