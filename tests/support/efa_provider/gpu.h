// Reaches GPU memory as a card does with GPUDirect RDMA: not through host addresses, and in no
// order with any stream. If the program has an emulated GPU, it provides the memory. Otherwise host
// memory registered as device memory stands in for it.
#pragma once

#include <cstddef>
#include <span>

namespace shoal::test::efa {

class Gpu {
 public:
  static const Gpu& get();

  bool is_there() const { return device_of_ != nullptr; }
  // The device whose cudaMalloc memory contains the whole range; -1: none.
  int device_of(const void* begin, std::size_t bytes) const {
    return device_of_ ? device_of_(begin, bytes) : -1;
  }
  int current_device() const { return current_device_ ? current_device_() : 0; }
  // Reads the current bytes.
  void read(std::byte* to, const void* from, std::size_t bytes) const;
  // Device work sees the bytes only after a flush.
  void write(void* to, std::span<const std::byte> bytes) const;

 private:
  Gpu();
  int (*device_of_)(const void*, std::size_t);
  int (*current_device_)();
  void (*read_)(void*, const void*, std::size_t);
  void (*write_)(void*, const void*, std::size_t);
};

}  // namespace shoal::test::efa
