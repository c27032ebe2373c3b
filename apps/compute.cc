#include "compute.h"

#include <cstdlib>
#include <filesystem>

#include "shoal/runtime/base/error.h"

namespace shoal::app {
namespace {

namespace fs = std::filesystem;

#ifdef SHOAL_WITH_CUDA
constexpr bool kBuiltWithCuda = true;
#else
constexpr bool kBuiltWithCuda = false;
#endif

// The driver's control device: there from when a GPU's driver was loaded.
bool has_nvidia_driver() {
  std::error_code ignored;
  return fs::exists("/dev/nvidiactl", ignored);
}

bool hides_gpus() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible != nullptr && (*visible == '\0' || std::string_view(visible) == "-1");
}

// Choices by timing hold for every run on this kind of GPU.
std::string algorithm_cache() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0')
    return std::string(cache) + "/shoal/algorithms";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::string(home) + "/.cache/shoal/algorithms";
  std::error_code ignored;
  return (fs::temp_directory_path(ignored) / "shoal-algorithms").string();
}

}  // namespace

ChosenDevice choose_device(const World& world, bool use_cpu) {
  if (use_cpu) return {Device::cpu(), "use_cpu"};
  DeviceBackend& cuda = device_backend(DeviceType::cuda);
  const int count = cuda.count();
  if (count > 0) {
    const Device device = Device::cuda(world.local_rank % count);
    cuda.check_available(device);
    return {device, fmt::format("local rank {}, {} GPU{} visible", world.local_rank, count,
                                count == 1 ? "" : "s")};
  }
  if (hides_gpus()) return {Device::cpu(), "CUDA_VISIBLE_DEVICES shows no GPU"};
  try {
    cuda.check_available(Device::cuda(0));
  } catch (const Error& error) {
    // A build without CUDA is as asked for; a GPU that cannot be used is a mistake to be told of.
    if (has_nvidia_driver() && kBuiltWithCuda)
      throw Error(ErrorCode::unavailable, error.message(),
                  "or train on the CPU with --use_cpu true");
    return {Device::cpu(), error.message()};
  }
  return {Device::cpu(), "there is no GPU"};
}

Compute::Compute(Device device, int cpu_threads)
    : source(make_device_memory(device)),
      host_source(device.is_cpu() ? nullptr : make_pinned_memory()),
      pool(*source),
      planned(pool, *source),
      memory(planned),
      host_pool(host_source ? std::make_unique<PoolMemory>(*host_source) : nullptr),
      kernels(
          device.is_cpu()
              ? kernels::make_cpu_kernels({.threads = cpu_threads, .memory = &memory})
              : kernels::make_cuda_kernels(
                    {.device = device, .memory = &memory, .cache_directory = algorithm_cache()})) {}

}  // namespace shoal::app
