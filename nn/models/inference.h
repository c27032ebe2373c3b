// Temporarily switches a training context to inference.
#pragma once

#include "shoal/nn/autograd/context.h"
#include "shoal/nn/autograd/tape.h"

namespace shoal::nn {

// Evaluate mode without a tape, until destruction.
class Inference {
 public:
  explicit Inference(Context& context)
      : context_(context), mode_(context.mode), tape_(context.tape) {
    context.mode = Mode::evaluate;
    context.tape = nullptr;
  }
  ~Inference() {
    context_.mode = mode_;
    context_.tape = tape_;
  }
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

 private:
  Context& context_;
  Mode mode_;
  Tape* tape_;
};

}  // namespace shoal::nn
