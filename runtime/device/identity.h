// Identifies the hardware of a device, whatever its index in this process.
#pragma once

#include <string>

#include "shoal/runtime/device/device.h"

namespace shoal {

// For a GPU, "GPU-" and its UUID, as nvidia-smi -L prints it. It is the same in every process,
// under every index that CUDA_VISIBLE_DEVICES assigns. Empty for the host. Throws as DeviceBackend
// does.
std::string device_identity(Device device);

}  // namespace shoal
