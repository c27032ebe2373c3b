// Driver functions obtained through the runtime, so that nothing links libcuda.
#pragma once

namespace shoal {

// Returns the function as of CUDA 12.0; null if the driver lacks it. Creates no context.
void* cuda_driver_function(const char* name) noexcept;

}  // namespace shoal
