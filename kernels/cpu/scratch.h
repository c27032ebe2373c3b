// Memory that a family keeps from call to call and that only ever grows.
#pragma once

#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::kernels {

class Scratch {
 public:
  explicit Scratch(MemoryResource& memory) : memory_(memory) {}

  // At least `bytes`, 64-byte aligned; contents are undefined, the last pointer becomes invalid.
  void* bytes(std::int64_t bytes) {
    const auto wanted = static_cast<std::size_t>(bytes);
    if (buffer_.size() < wanted) {
      buffer_.reset();
      buffer_ = Buffer(memory_, wanted, MemoryTag::workspace);
    }
    return buffer_.data();
  }
  template <typename T>
  T* of(std::int64_t count) {
    return static_cast<T*>(bytes(count * static_cast<std::int64_t>(sizeof(T))));
  }

 private:
  MemoryResource& memory_;
  Buffer buffer_;
};

}  // namespace shoal::kernels
