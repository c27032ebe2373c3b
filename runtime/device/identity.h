// Which piece of hardware a device is, whatever its index in this process.
#pragma once

#include <string>

#include "shoal/runtime/device/device.h"

namespace shoal {

// Of a GPU "GPU-" and its UUID, as nvidia-smi -L says it: the same in every process, under every
// index that CUDA_VISIBLE_DEVICES gives it. Empty for the host. Throws as DeviceBackend does.
std::string device_identity(Device device);

}  // namespace shoal
