// What the environment says about the emulated machine; read once.
#pragma once

#include <cstddef>
#include <vector>

namespace shoal::emulated_gpu {

struct Settings {
  // Of SHOAL_EMULATED_GPUS (0 to 16; 1) those that CUDA_VISIBLE_DEVICES shows, and their numbers.
  int devices = 1;
  std::vector<int> visible = {0};
  std::size_t memory = std::size_t{4} << 30;  // SHOAL_EMULATED_GPU_MEMORY: bytes of each device
  int major = 9, minor = 0;                   // SHOAL_EMULATED_GPU_CAPABILITY, as 9.0
  int shared_memory = 227 << 10;              // bytes that a block may ask for, of that capability
  // SHOAL_EMULATED_GPU_DRIVER, as 12.0: the CUDA that the driver knows; the runtime is the newest
  // of that major version.
  int driver = 13000, runtime = 13000;
  int cudnn = 0;       // SHOAL_EMULATED_GPU_CUDNN: its version, such as 91900; 0: it does not start
  bool values = true;  // SHOAL_EMULATED_GPU_STREAM_VALUES=0: a driver without cuStreamWaitValue32
  // SHOAL_EMULATED_GPU_CONTEXTS (1 to 16): on so many devices a process may have a context.
  std::size_t contexts = 16;
  bool eager = false;       // SHOAL_EMULATED_GPU_STREAMS=eager, or CUDA_LAUNCH_BLOCKING=1
  bool cards_reach = true;  // network cards, its memory; SHOAL_EMULATED_GPU_RDMA=0: not
};
const Settings& settings();

constexpr int kMultiprocessors = 2;  // grids that fill the device stay small
constexpr int kSharedMemory = 48 << 10;

}  // namespace shoal::emulated_gpu
