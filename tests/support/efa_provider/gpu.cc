#include "gpu.h"

#include <cstring>

#include <dlfcn.h>

namespace shoal::test::efa {
namespace {

// Finds a function by name in the loaded program, as libfabric finds CUDA.
template <typename Function>
void find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace

Gpu::Gpu() {
  find(device_of_, "shoal_emulated_gpu_device_of");
  find(current_device_, "shoal_emulated_gpu_current_device");
  find(read_, "shoal_emulated_gpu_card_reads");
  find(write_, "shoal_emulated_gpu_card_writes");
}

const Gpu& Gpu::get() {
  static const Gpu gpu;
  return gpu;
}

void Gpu::read(std::byte* to, const void* from, std::size_t bytes) const {
  if (read_)
    read_(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

void Gpu::write(void* to, std::span<const std::byte> bytes) const {
  if (write_)
    write_(to, bytes.data(), bytes.size());
  else
    std::memcpy(to, bytes.data(), bytes.size());
}

}  // namespace shoal::test::efa
