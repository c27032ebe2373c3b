// Which GPUs a binary has code for. Host code only.
#pragma once

#include <string>
#include <string_view>

namespace shoal::kernels {

// Whether code that was compiled for `architectures`, a CMAKE_CUDA_ARCHITECTURES such as
// "70-real;80;90a-real" (or with spaces), runs on a device of `capability` (70: 7.0): machine code
// on those of its major version that are not older, PTX on all that are not older, what ends in a
// letter as the toolkit says ("90a": there alone; "100f": on its family). Of words like "native"
// the driver knows.
bool runs_on(std::string_view architectures, int capability);

// "-DCMAKE_CUDA_ARCHITECTURES=...", what to build Shoal with for that device; below 7.5 it says
// that this takes CUDA 12.
std::string build_flag_for(int capability);

}  // namespace shoal::kernels
