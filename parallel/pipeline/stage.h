// The interface that the executor runs.
#pragma once

#include "shoal/runtime/tensor/tensor.h"

namespace shoal::parallel {

// Computes one stage, microbatch by microbatch, in the order of the schedule (chain_stage.h
// implements it for models). Tensors passed in and out are contiguous and must not be written
// afterwards.
class Stage {
 public:
  virtual ~Stage() = default;
  // Shape and type of this stage's input and output, and of their gradients. Not called for the
  // input of the first stage and the output of the last.
  struct Message {
    Shape shape;
    DType dtype = DType::f32;
  };
  virtual Message input(int microbatch) const = 0;
  virtual Message output(int microbatch) const = 0;
  // An uninitialised tensor to receive into.
  virtual Tensor allocate(const Message& message) = 0;

  // F. `input` is undefined on the first stage; the result is undefined on the last.
  virtual Tensor forward(int microbatch, Tensor input) = 0;
  // B. With `weights_later` it is I, and weight_backward() (W) completes it. Takes the gradient of
  // the output (undefined on the last stage) and returns that of the input (undefined on the
  // first).
  virtual Tensor backward(int microbatch, Tensor gradient, bool weights_later) = 0;
  virtual void weight_backward(int microbatch) = 0;

  // Announces the backward of `microbatch` some computations ahead (PipelineExecutor's horizon),
  // possibly more than once, so that the stage can bring offloaded tensors back.
  virtual void expect_backward(int microbatch) { (void)microbatch; }
};

}  // namespace shoal::parallel
