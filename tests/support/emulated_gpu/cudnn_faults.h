// What tests ask of the emulated cuDNN.
#pragma once

#include <cstdint>

#include "cudnn.h"

namespace shoal::emulated_gpu {

enum class CudnnCall { create, plan, execute };

// The calling thread's next call of that kind (plan: cudnnBackendFinalize of a plan) answers with
// `status` and does nothing; CUDA's last error is then that memory ran out.
void fail_next(CudnnCall call, cudnnStatus_t status);

// Plans of this process: that are there, and that were ever made.
struct CudnnPlans {
  std::int64_t alive = 0, made = 0;
};
CudnnPlans cudnn_plans();

}  // namespace shoal::emulated_gpu
