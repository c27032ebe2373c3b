// Functions of the driver, which the runtime hands out: nothing links libcuda.
#pragma once

namespace shoal {

// The function of that name as CUDA 12.0 had it; null where this driver has none. Makes no context.
void* cuda_driver_function(const char* name) noexcept;

}  // namespace shoal
