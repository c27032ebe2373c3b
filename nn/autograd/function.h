// One recorded operation: what a tape keeps in order to walk back.
//
// Write a differentiable operation (also outside nn: parallel/'s collectives are Functions): run
// the kernels, then, if ctx.tape(), record a Function with the input Values, the parameters it
// used and whatever backward needs in SavedTensors.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "shoal/nn/autograd/parameter.h"

namespace shoal::nn {

class Context;
class Tape;

// A tensor and where it came from. A Value without a tape is a constant.
struct Value {
  Tensor tensor;
  Tape* tape = nullptr;
  int node = -1;  // index on the tape
  int slot = 0;   // which output of that node
  bool needs_gradient() const { return tape != nullptr; }
};

// A tensor kept for backward. Remembers the storage's version: reading it after somebody wrote in
// place throws, naming the function. Tape hooks (offloading, recomputation) see it pass.
class SavedTensor {
 public:
  SavedTensor() = default;
  SavedTensor(Tape& tape, Tensor tensor);
  Tensor get(std::string_view function) const;  // unpacks
  bool defined() const { return defined_; }
  void reset();

 private:
  Tensor tensor_;
  std::function<Tensor()> unpack_;  // set when a hook packed it
  std::uint64_t version_ = 0;
  bool defined_ = false;
};

// What backward may do besides returning gradients.
class BackwardContext {
 public:
  BackwardContext(Context& context, Tape& tape, bool defer) : context_(context), tape_(tape), defer_(defer) {}
  Context& context() { return context_; }
  // Work that adds to `parameters`' gradients: run at once, or queued on the tape until
  // Tape::run_deferred (a zero-bubble schedule's W). Afterwards each parameter's use ends.
  void weight_gradient(std::vector<Parameter*> parameters, std::function<void()> work);

 private:
  Context& context_;
  Tape& tape_;
  bool defer_;
};

class Function {
 public:
  virtual ~Function() = default;
  virtual std::string_view name() const = 0;
  // d(loss)/d(input) for each recorded input, undefined where the input is a constant. An undefined
  // output gradient means zero. Called once; saved tensors are dropped right after.
  virtual std::vector<Tensor> backward(BackwardContext& context,
                                       std::span<const Tensor> output_gradients) = 0;
};

}  // namespace shoal::nn
