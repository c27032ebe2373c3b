// Memory that a family keeps between calls and that only grows.
#pragma once

#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::kernels {

class Scratch {
 public:
  explicit Scratch(MemoryResource& memory) : memory_(memory) {}

  // Returns at least `bytes`, 64-byte aligned, with undefined contents. Invalidates the previous
  // pointer.
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
