// Tells which GPUs a binary has code for. Host code only.
#pragma once

#include <string>
#include <string_view>

namespace shoal::kernels {

// True if code compiled for `architectures` runs on a device of `capability` (70: 7.0).
// `architectures` is a CMAKE_CUDA_ARCHITECTURES such as "70-real;80;90a-real", also with spaces.
// Machine code runs on devices of the same major version that are not older; PTX runs on all
// devices that are not older. Letter suffixes follow the toolkit's rules ("90a": only 9.0; "100f":
// its family). For words like "native" the result is true, and the driver decides.
bool runs_on(std::string_view architectures, int capability);

// The CMake flag that builds Shoal for that device, "-DCMAKE_CUDA_ARCHITECTURES=...". Below 7.5,
// the text adds that the build needs CUDA 12.
std::string build_flag_for(int capability);

}  // namespace shoal::kernels
