// Tells which GPUs a binary has code for. Host code only.
#pragma once

#include <string>
#include <string_view>

namespace shoal::kernels {

// True if code compiled for `architectures` runs on a device of `capability` (70: 7.0).
// `architectures` is a CMAKE_CUDA_ARCHITECTURES such as "70-real;80;90a-real" (or with spaces).
// Machine code runs on devices of its major version that are not older, PTX on all that are not
// older. A letter suffix follows the toolkit's rules ("90a": only 9.0; "100f": its family). Words
// like "native" give true; the driver decides.
bool runs_on(std::string_view architectures, int capability);

// CMake flag that builds Shoal for that device, "-DCMAKE_CUDA_ARCHITECTURES=..."; below 7.5 the
// text adds that the build needs CUDA 12.
std::string build_flag_for(int capability);

}  // namespace shoal::kernels
