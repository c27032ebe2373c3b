#include "shoal/runtime/tensor/tensor.h"

#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

std::size_t bytes_of(const Shape& shape, DType dtype) {
  std::size_t bytes = 0;
  SHOAL_CHECK(
      !__builtin_mul_overflow(static_cast<std::size_t>(shape.count()), size_of(dtype), &bytes),
      "the bytes of {} of {} overflow", to_string(shape), to_string(dtype));
  return bytes;
}

}  // namespace

Storage::Storage(Buffer buffer)
    : buffer_(std::move(buffer)),
      data_(buffer_.data()),
      bytes_(buffer_.size()),
      device_(buffer_.device()) {}

Storage::Storage(void* data, std::size_t bytes, Device device, std::shared_ptr<void> keeper)
    : keeper_(std::move(keeper)), data_(data), bytes_(bytes), device_(device) {}

std::shared_ptr<Storage> Storage::read_only(const void* data, std::size_t bytes, Device device,
                                            std::shared_ptr<void> keeper) {
  auto storage =
      std::make_shared<Storage>(const_cast<void*>(data), bytes, device, std::move(keeper));
  storage->writable_ = false;
  return storage;
}

void* Storage::data() const {
  if (released_)
    throw Error(ErrorCode::internal, fmt::format("a released storage of {} bytes was read", bytes_),
                "rematerialise it first");
  return data_;
}

void Storage::release() {
  buffer_.reset();
  keeper_.reset();
  data_ = nullptr;
  released_ = true;
}

void Storage::rematerialise(Buffer buffer) {
  SHOAL_CHECK(buffer.size() == bytes_, "a storage of {} bytes cannot be rematerialised with {}",
              bytes_, buffer.size());
  buffer_ = std::move(buffer);
  data_ = buffer_.data();
  device_ = buffer_.device();
  released_ = false;
  writable_ = true;
}

namespace detail {
void check_dtype(DType have, DType want) {
  SHOAL_CHECK(have == want, "a tensor of {} was read as {}", to_string(have), to_string(want));
}
}  // namespace detail

Tensor::Tensor(std::shared_ptr<Storage> storage, std::int64_t offset, Shape shape, Shape strides,
               DType dtype)
    : storage_(std::move(storage)),
      offset_(offset),
      shape_(shape),
      strides_(strides),
      dtype_(dtype) {
  SHOAL_CHECK(shape_.rank() == strides_.rank(), "sizes {} and strides {} differ in rank",
              to_string(shape_), to_string(strides_));
  SHOAL_CHECK(storage_ != nullptr, "a tensor {} over no storage", to_string(shape_));
  std::int64_t end = offset_;  // one past the last element
  bool fits = offset_ >= 0;
  if (shape_.count() > 0) {
    for (int dim = 0; dim < shape_.rank(); ++dim) {
      std::int64_t reach = 0;
      fits = fits && !__builtin_mul_overflow(shape_[dim] - 1, strides_[dim], &reach) &&
             !__builtin_add_overflow(end, reach, &end);
    }
    fits = fits && !__builtin_add_overflow(end, 1, &end);
  }
  SHOAL_CHECK(fits && static_cast<std::size_t>(end) <= storage_->size() / size_of(dtype_),
              "{} of {} with strides {} at element {} does not fit a storage of {} bytes",
              to_string(shape_), to_string(dtype_), to_string(strides_), offset_, storage_->size());
}

Tensor Tensor::empty(const Shape& shape, DType dtype, MemoryResource& memory, MemoryTag tag,
                     Stream stream) {
  const std::size_t bytes = bytes_of(shape, dtype);
  return over(std::make_shared<Storage>(Buffer(memory, bytes, tag, stream)), 0, shape, dtype);
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, MemoryResource& memory, MemoryTag tag,
                     Stream stream) {
  Tensor tensor = empty(shape, dtype, memory, tag, stream);
  if (tensor.bytes() > 0)
    device_backend(memory.device().type).fill(tensor.pointer(), 0, tensor.bytes(), stream);
  return tensor;
}

Tensor Tensor::over(std::shared_ptr<Storage> storage, std::size_t byte_offset, const Shape& shape,
                    DType dtype) {
  const std::size_t bytes = bytes_of(shape, dtype);
  SHOAL_CHECK(byte_offset % size_of(dtype) == 0,
              "offset {} is not a multiple of the {} bytes of {}", byte_offset, size_of(dtype),
              to_string(dtype));
  SHOAL_CHECK(byte_offset <= storage->size() && bytes <= storage->size() - byte_offset,
              "{} of {} at byte {} does not fit a storage of {} bytes", to_string(shape),
              to_string(dtype), byte_offset, storage->size());
  const auto offset = static_cast<std::int64_t>(byte_offset / size_of(dtype));
  return {std::move(storage), offset, shape, contiguous_strides(shape), dtype};
}

bool Tensor::is_contiguous() const {
  if (shape_.count() == 0) return true;
  std::int64_t expected = 1;
  for (int dim = shape_.rank() - 1; dim >= 0; --dim) {
    if (shape_[dim] != 1 && strides_[dim] != expected) return false;
    expected *= shape_[dim];
  }
  return true;
}

Tensor Tensor::reshaped(const Shape& shape) const {
  SHOAL_CHECK(shape.count() == count(), "{} cannot be reshaped to {}", to_string(shape_),
              to_string(shape));
  SHOAL_CHECK(is_contiguous(), "a tensor {} with strides {} cannot be reshaped in place",
              to_string(shape_), to_string(strides_));
  return {storage_, offset_, shape, contiguous_strides(shape), dtype_};
}

Tensor Tensor::narrowed(int dim, std::int64_t start, std::int64_t length) const {
  SHOAL_CHECK(start >= 0 && length >= 0 && start <= shape_[dim] - length,
              "{} from {} do not lie within dimension {} of {}", length, start, dim,
              to_string(shape_));
  return {storage_, offset_ + start * strides_[dim], shape_.with(dim, length), strides_, dtype_};
}

Tensor Tensor::transposed(int dim0, int dim1) const {
  const std::int64_t size0 = shape_[dim0], size1 = shape_[dim1];
  const std::int64_t stride0 = strides_[dim0], stride1 = strides_[dim1];
  return {storage_, offset_, shape_.with(dim0, size1).with(dim1, size0),
          strides_.with(dim0, stride1).with(dim1, stride0), dtype_};
}

void* Tensor::pointer() const {
  SHOAL_CHECK(defined(), "an undefined tensor was used");
  SHOAL_CHECK(is_contiguous(),
              "a kernel was given a tensor {} with strides {}; it takes contiguous ones",
              to_string(shape_), to_string(strides_));
  return static_cast<std::byte*>(storage_->data()) +
         static_cast<std::size_t>(offset_) * size_of(dtype_);
}

View Tensor::view() const {
  void* data = pointer();
  SHOAL_CHECK(storage_->writable(), "a read-only tensor {} was to be written", to_string(shape_));
  storage_->bump_version();
  return {data, shape_, dtype_, storage_->device()};
}

ConstView Tensor::const_view() const { return {pointer(), shape_, dtype_, storage_->device()}; }

}  // namespace shoal
