// Small values in device memory that the host occasionally reads or writes.
#pragma once

#include "shoal/kernels/kernels.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::nn {

// The value of a one-element tensor (f32, f64 or i32). Waits for all work queued on `stream`.
double read_scalar(const Tensor& scalar, Stream stream);
// Overwrites a one-element tensor (f32 or f64) after the work queued on `stream`, and waits.
void write_scalar(double value, const Tensor& scalar, Stream stream);

// Copies all elements of a tensor to host memory, and waits.
void copy_to_host(void* values, const Tensor& tensor, Stream stream);
// The same, into a new tensor in `host` memory (MemoryTag::workspace).
Tensor copied_to_host(const Tensor& tensor, MemoryResource& host, Stream stream);
// Waits for `stream`. Returns `tensor` itself if it is in host memory, otherwise a host copy.
Tensor on_host(const Tensor& tensor, MemoryResource& host, Stream stream);

// The StepState of a run, in memory of the kernels' device (kernels/step_state.h). With a device
// other than the host, only kernels may dereference pointer().
class StepStateMemory {
 public:
  // `memory` must be on the kernels' device. `kernels` and `memory` must outlive this object.
  StepStateMemory(kernels::Kernels& kernels, MemoryResource& memory,
                  const kernels::StepState& initial = {});

  kernels::StepState* pointer() const;
  kernels::StepState& operator*() const { return *pointer(); }
  // Both wait for the work queued on the stream.
  kernels::StepState read() const;
  void write(const kernels::StepState& state);

 private:
  Stream stream_;
  Tensor bytes_;
};

}  // namespace shoal::nn
