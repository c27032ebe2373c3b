// What an executor drives.
#pragma once

#include "shoal/runtime/tensor/tensor.h"

namespace shoal::parallel {

// What one stage does, microbatch by microbatch, in the order of the schedule (chain_stage.h is the
// one for models). Tensors that it is given or gives are contiguous and not written afterwards.
class Stage {
 public:
  virtual ~Stage() = default;
  // What enters and what leaves this stage; the gradients of both look the same. Not asked of the
  // pipeline's two ends.
  struct Message {
    Shape shape;
    DType dtype = DType::f32;
  };
  virtual Message input(int microbatch) const = 0;
  virtual Message output(int microbatch) const = 0;
  // An uninitialised tensor to receive into.
  virtual Tensor allocate(const Message& message) = 0;

  // F. `input` is undefined for the first stage; so is what the last one returns.
  virtual Tensor forward(int microbatch, Tensor input) = 0;
  // B, or I where `weights_later`: the rest then comes with weight_backward (W). The gradient of
  // the output (undefined: the last stage's) for that of the input (undefined: the first's).
  virtual Tensor backward(int microbatch, Tensor gradient, bool weights_later) = 0;
  virtual void weight_backward(int microbatch) = 0;

  // Some computations ahead of that microbatch's backward (PipelineExecutor's horizon), perhaps
  // more than once: what was offloaded may be brought back.
  virtual void expect_backward(int microbatch) { (void)microbatch; }
  virtual void unshard() {}
  virtual void reshard() {}
  virtual void reduce_gradients() {}
};

}  // namespace shoal::parallel
