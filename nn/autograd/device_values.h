// Numbers that live where the kernels are and that the host now and then wants.
#pragma once

#include "shoal/kernels/kernels.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::nn {

// The one number of `scalar` (f32, f64 or i32). In device memory: waits for all work queued on
// `stream`.
double read_scalar(const Tensor& scalar, Stream stream);
// Overwrites it, after what is queued on `stream`; waits too.
void write_scalar(double value, const Tensor& scalar, Stream stream);

// All of a tensor's elements, into host memory; waits likewise.
void copy_to_host(void* values, const Tensor& tensor, Stream stream);

// The StepState of a run, in memory of the kernels' device (kernels/random.h). On a device only
// kernels may look behind pointer().
class StepStateMemory {
 public:
  // `kernels` and `memory`, which is of their device, must outlive it.
  StepStateMemory(kernels::Kernels& kernels, MemoryResource& memory,
                  const kernels::StepState& initial = {});

  kernels::StepState* pointer() const;
  kernels::StepState& operator*() const { return *pointer(); }
  // Both wait for what is queued.
  kernels::StepState read() const;
  void write(const kernels::StepState& state);

 private:
  Stream stream_;
  Tensor bytes_;
};

}  // namespace shoal::nn
