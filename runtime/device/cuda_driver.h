// Driver functions, obtained through the CUDA runtime so that Shoal does not link libcuda.
#pragma once

namespace shoal {

// Returns the driver function of this name in its CUDA 12.0 version; null if the driver lacks it.
// Creates no context.
void* cuda_driver_function(const char* name) noexcept;

}  // namespace shoal
