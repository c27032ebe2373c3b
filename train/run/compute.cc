#include "shoal/train/run/compute.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/free_memory.h"
#include "shoal/runtime/io/file_system.h"

namespace shoal {
namespace {

#ifdef SHOAL_WITH_CUDA
constexpr bool kBuiltWithCuda = true;
#else
constexpr bool kBuiltWithCuda = false;
#endif

// The driver's control device, which exists once a GPU driver is loaded.
bool has_nvidia_driver() { return ::access("/dev/nvidiactl", F_OK) == 0; }

bool hides_gpus() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible != nullptr && (*visible == '\0' || std::string_view(visible) == "-1");
}

// File of algorithm choices made by timing. They are valid for all runs on the same kind of GPU.
std::string algorithm_cache() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0')
    return std::string(cache) + "/shoal/algorithms";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::string(home) + "/.cache/shoal/algorithms";
  return temporary_directory() + "/shoal-algorithms";
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
    // A build without CUDA uses the CPU as intended; an unusable GPU is an error.
    if (has_nvidia_driver() && kBuiltWithCuda)
      throw Error(ErrorCode::unavailable, error.message(),
                  "or train on the CPU with --use_cpu true");
    return {Device::cpu(), error.message()};
  }
  return {Device::cpu(), "there is no GPU"};
}

std::optional<MemoryLimit> memory_limit(std::optional<double> limit_mb, const World& world,
                                        Device device, const SharedGpu& shared) {
  if (limit_mb)
    return MemoryLimit{static_cast<std::int64_t>(*limit_mb * (1 << 20)), "memory_limit_mb"};
  if (!device.is_cpu()) {
    if (shared.ranks == 1 || shared.free == 0) return std::nullopt;
    // The remaining share is for libraries and the driver's per-process data.
    constexpr double kShareOfGpu = 0.9;
    return MemoryLimit{
        static_cast<std::int64_t>(kShareOfGpu * static_cast<double>(shared.free) / shared.ranks),
        fmt::format("{}'s memory, shared by {} ranks", to_string(device), shared.ranks)};
  }
  const FreeMemory room = free_memory();
  if (!room.known()) return std::nullopt;
  // The remaining share is for other memory: samples under construction, thread stacks, other
  // programs.
  constexpr double kShare = 0.95;
  const int ranks = std::max(1, world.local_size);
  std::string bound = room.bound;
  if (ranks > 1) bound += fmt::format(", shared by {} ranks", ranks);
  return MemoryLimit{static_cast<std::int64_t>(kShare * static_cast<double>(room.free) / ranks),
                     std::move(bound)};
}

Compute::Compute(Device device, int cpu_threads, const std::optional<MemoryLimit>& limit)
    : source(make_device_memory(device)),
      host_source(device.is_cpu() ? nullptr : make_pinned_memory()),
      limited(limit ? std::make_unique<LimitedMemory>(*source, *limit) : nullptr),
      pool(limited ? static_cast<MemoryResource&>(*limited) : *source),
      planned(pool, limited ? static_cast<MemoryResource&>(*limited) : *source),
      asked(planned),
      memory(static_cast<MemoryResource&>(asked)),
      pinned(host_source ? std::make_unique<CountingMemory>(*host_source) : nullptr),
      host_pool(pinned ? std::make_unique<PoolMemory>(*pinned) : nullptr),
      kernels(
          device.is_cpu()
              ? kernels::make_cpu_kernels({.threads = cpu_threads, .memory = &memory})
              : kernels::make_cuda_kernels(
                    {.device = device, .memory = &memory, .cache_directory = algorithm_cache()})) {
  if (limited)
    limited->count_too([this] { return memory.total().current - asked.total().current; });
}

}  // namespace shoal
