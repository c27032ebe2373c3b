// The memory of a GPU as a card reaches it by itself (GPUDirect RDMA): not through addresses of the
// host, and in no order with any stream. Where the program has an emulated GPU that does it;
// elsewhere host memory that was registered as a device's stands for it.
#pragma once

#include <cstddef>
#include <span>

namespace shoal::test::efa {

class Gpu {
 public:
  static const Gpu& get();

  bool is_there() const { return device_of_ != nullptr; }
  // The device that has all of it as memory of cudaMalloc; -1: none.
  int device_of(const void* begin, std::size_t bytes) const {
    return device_of_ ? device_of_(begin, bytes) : -1;
  }
  int current_device() const { return current_device_ ? current_device_() : 0; }
  // What is there now.
  void read(std::byte* to, const void* from, std::size_t bytes) const;
  // Device work sees it once somebody has flushed it.
  void write(void* to, std::span<const std::byte> bytes) const;

 private:
  Gpu();
  int (*device_of_)(const void*, std::size_t);
  int (*current_device_)();
  void (*read_)(void*, const void*, std::size_t);
  void (*write_)(void*, const void*, std::size_t);
};

}  // namespace shoal::test::efa
