// Faults and counts of the emulated cuDNN, for tests.
#pragma once

#include <cstdint>

#include "cudnn.h"

namespace shoal::emulated_gpu {

enum class CudnnCall { create, plan, execute };

// Makes the calling thread's next call of that kind (plan: cudnnBackendFinalize of a plan) return
// `status` without doing anything. CUDA's last error then says that memory ran out.
void fail_next(CudnnCall call, cudnnStatus_t status);

// Plans of this process that exist, and that were ever made.
struct CudnnPlans {
  std::int64_t alive = 0, made = 0;
};
CudnnPlans cudnn_plans();

}  // namespace shoal::emulated_gpu
