// Linked instead of cuda_stream_gate.cc if SHOAL_CUDA is OFF.
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/stream_gate.h"

namespace shoal {

std::unique_ptr<StreamGate> make_cuda_stream_gate(Device) {
  throw Error(ErrorCode::unavailable, "this build of Shoal has no CUDA",
              "configure with -DSHOAL_CUDA=ON, or use the device cpu");
}

std::string why_no_cuda_stream_gates(Device) { return "this build of Shoal has no CUDA"; }

}  // namespace shoal
