// Tensor = Storage + offset + sizes + strides + dtype. A cheap handle; copies share the storage.
//
//   const Tensor tensor = Tensor::zeros({4, 8}, DType::f32, memory, MemoryTag::data);
//   tensor.data<float>()[9] = 1;                               // host memory: row 1, column 1
//   const Tensor row = tensor.narrowed(0, 1, 1).reshaped({8});  // row 1; shares the storage
//
// Kernels take View and ConstView. Wrong sizes, dtypes and uses throw invalid_argument.
#pragma once

#include <cstdint>
#include <memory>

#include "shoal/runtime/memory/memory_resource.h"
#include "shoal/runtime/tensor/dtype.h"
#include "shoal/runtime/tensor/shape.h"

namespace shoal {

// Bytes that tensors share. Offloading and sharding release and rematerialise them; reading a
// released storage throws. `version` counts in-place writes, so that a tensor saved for backward
// can detect that it was overwritten. Not thread-safe.
class Storage {
 public:
  explicit Storage(Buffer buffer);
  // Memory owned elsewhere, which `keeper` keeps alive. read_only(): it must not be written.
  Storage(void* data, std::size_t bytes, Device device, std::shared_ptr<void> keeper);
  static std::shared_ptr<Storage> read_only(const void* data, std::size_t bytes, Device device,
                                            std::shared_ptr<void> keeper);

  void* data() const;  // throws when released
  std::size_t size() const { return bytes_; }
  Device device() const { return device_; }
  bool released() const { return released_; }
  bool writable() const { return writable_; }
  std::uint64_t version() const { return version_; }
  void bump_version() { ++version_; }

  void release();                     // frees the bytes; the size is remembered
  void rematerialise(Buffer buffer);  // same size as before

 private:
  Buffer buffer_;
  std::shared_ptr<void> keeper_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_{};
  bool released_ = false, writable_ = true;
  std::uint64_t version_ = 0;
};

// A contiguous row-major block of elements, read-write; a bare pointer, not its owner.
struct View {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::f32;
  Device device{};
  bool defined() const { return data != nullptr; }
  template <typename T>
  T* as() const;  // throws when T is not the dtype
};

struct ConstView {  // a View that is read-only
  const void* data = nullptr;
  Shape shape;
  DType dtype = DType::f32;
  Device device{};
  ConstView() = default;
  ConstView(const void* data_in, Shape shape_in, DType dtype_in, Device device_in = {})
      : data(data_in), shape(shape_in), dtype(dtype_in), device(device_in) {}
  ConstView(const View& view)  // NOLINT: a View is always readable
      : data(view.data), shape(view.shape), dtype(view.dtype), device(view.device) {}
  bool defined() const { return data != nullptr; }
  template <typename T>
  const T* as() const;
};

class Tensor {  // a handle of typed elements in a shared Storage
 public:
  Tensor() = default;  // undefined
  // Every element must be within the storage.
  Tensor(std::shared_ptr<Storage> storage, std::int64_t offset, Shape shape, Shape strides,
         DType dtype);

  // Uninitialised; zeros() fills on `stream`. `memory` must outlive it. Throws out_of_memory.
  static Tensor empty(const Shape& shape, DType dtype, MemoryResource& memory, MemoryTag tag,
                      Stream stream = {});
  static Tensor zeros(const Shape& shape, DType dtype, MemoryResource& memory, MemoryTag tag,
                      Stream stream = {});
  // A contiguous tensor over `storage` from `byte_offset`, a multiple of the dtype's size.
  static Tensor over(std::shared_ptr<Storage> storage, std::size_t byte_offset, const Shape& shape,
                     DType dtype);

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }  // elements
  DType dtype() const { return dtype_; }
  Device device() const { return storage_->device(); }
  std::int64_t count() const { return shape_.count(); }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype_); }
  std::int64_t offset() const { return offset_; }  // elements
  const std::shared_ptr<Storage>& storage() const { return storage_; }
  bool is_contiguous() const;

  // Same storage with other sizes. The count must match, and the tensor must be contiguous.
  Tensor reshaped(const Shape& shape) const;
  // [start, start + length) of dimension dim; shares the storage.
  Tensor narrowed(int dim, std::int64_t start, std::int64_t length) const;
  Tensor transposed(int dim0, int dim1) const;
  // For kernels. Both throw if the tensor is undefined, released or not contiguous. view() bumps
  // the version and throws on read-only storage, so call it only to write.
  View view() const;
  ConstView const_view() const;
  operator ConstView() const { return const_view(); }  // NOLINT

  // Host tensors only: the elements as a typed pointer.
  template <typename T>
  T* data() const {
    return view().as<T>();
  }
  template <typename T>
  const T* const_data() const {
    return const_view().as<T>();
  }

 private:
  void* pointer() const;

  std::shared_ptr<Storage> storage_;
  std::int64_t offset_ = 0;
  Shape shape_, strides_;
  DType dtype_ = DType::f32;
};

namespace detail {
void check_dtype(DType have, DType want);
}

template <typename T>
T* View::as() const {
  detail::check_dtype(dtype, dtype_of<T>());
  return static_cast<T*>(data);
}

template <typename T>
const T* ConstView::as() const {
  detail::check_dtype(dtype, dtype_of<T>());
  return static_cast<const T*>(data);
}

}  // namespace shoal
