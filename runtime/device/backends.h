// Factories behind device_backend(). CMake links exactly one source for CUDA: the real backend, or
// the one whose errors name the build flag (docs/internals/architecture.md, decision 14).
#pragma once

#include <memory>

#include "shoal/runtime/device/device.h"

namespace shoal {

std::unique_ptr<DeviceBackend> make_host_device_backend();
std::unique_ptr<DeviceBackend> make_cuda_device_backend();

}  // namespace shoal
