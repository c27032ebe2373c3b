// The emulated machine as the environment describes it. Read once.
#pragma once

#include <cstddef>
#include <vector>

namespace shoal::emulated_gpu {

struct Settings {
  // The devices of SHOAL_EMULATED_GPUS (0 to 16; default 1) that CUDA_VISIBLE_DEVICES shows, and
  // their numbers.
  int devices = 1;
  std::vector<int> visible = {0};
  std::size_t memory = std::size_t{4} << 30;  // SHOAL_EMULATED_GPU_MEMORY: bytes of each device
  int major = 9, minor = 0;                   // SHOAL_EMULATED_GPU_CAPABILITY, such as 9.0
  int shared_memory = 227 << 10;              // bytes a block may request at that capability
  // SHOAL_EMULATED_GPU_DRIVER, such as 12.0: the CUDA version of the driver. The runtime is the
  // newest of that major version.
  int driver = 13000, runtime = 13000;
  int cudnn = 0;       // SHOAL_EMULATED_GPU_CUDNN: its version, such as 91900; 0: no cuDNN
  bool values = true;  // SHOAL_EMULATED_GPU_STREAM_VALUES=0: no cuStreamWaitValue32
  // SHOAL_EMULATED_GPU_CONTEXTS (1 to 16): a process may have contexts on this many devices.
  std::size_t contexts = 16;
  bool eager = false;       // SHOAL_EMULATED_GPU_STREAMS=eager, or CUDA_LAUNCH_BLOCKING=1
  bool cards_reach = true;  // SHOAL_EMULATED_GPU_RDMA=0: network cards cannot reach its memory
};
const Settings& settings();

constexpr int kMultiprocessors = 2;  // few, so that grids that fill the device stay small
constexpr int kSharedMemory = 48 << 10;

}  // namespace shoal::emulated_gpu
