// One recorded operation: what a tape keeps in order to walk back.
//
// Write a differentiable operation (also outside nn: parallel/'s collectives are Functions): ask
// context.records(inputs, parameters), run the kernels, then either return constants, or record a
// Function on context.tape with the input Values, the parameters it used and whatever backward
// needs in SavedTensors. Parameters are read through Parameter::value, not saved.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shoal/kernels/matmul.h"
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

// The activation that an operation ends in, and its value before it: activation'(input) is a factor
// of the gradient on its way back.
struct ActivationGate {
  kernels::Activation activation = kernels::Activation::none;
  Tensor input;
};

// What backward may do besides returning gradients.
class BackwardContext {
 public:
  BackwardContext(Context& context, Tape& tape, int node, bool deferred)
      : context_(context), tape_(tape), node_(node), deferred_(deferred) {}
  Context& context() { return context_; }
  bool deferred() const { return deferred_; }
  // Work that adds to `parameters`' gradients: run at once, or queued on the tape until
  // Tape::run_deferred (a zero-bubble schedule's W). Afterwards one use of each parameter ends. The
  // parameters must be among those recorded; frozen ones are passed over, and with only frozen ones
  // the work does not run. `work` owns what it needs (tensors by value): the Function is gone by
  // then.
  // With a Context::branch it is queued there.
  void weight_gradient(std::span<Parameter* const> parameters, std::function<void()> work) {
    weight_gradient(parameters, on_branch(std::move(work)), deferred_);
  }
  // The same for work that costs less than what it would hold until W, or that gives the inputs'
  // gradients too: runs at once and on backward's stream, whatever the schedule.
  void weight_gradient_at_once(std::span<Parameter* const> parameters, std::function<void()> work) {
    weight_gradient(parameters, std::move(work), false);
  }

  // For a product whose input `input` comes from an operation that ends in an activation and is
  // read by nobody else: the product may multiply by the activation's derivative as it stores the
  // input's gradient, and what it takes here it must so apply. Ask once.
  std::optional<ActivationGate> take_gate(int input);
  // What other readers of `input` have given for its gradient so far, where nobody else holds it: a
  // product may add to it in place, and returns it as the input's gradient. Undefined: there is
  // none. Ask once, and not beside a gate that was taken.
  Tensor take_sum(int input);

 private:
  void weight_gradient(std::span<Parameter* const> parameters, std::function<void()> work,
                       bool deferred);
  std::function<void()> on_branch(std::function<void()> work);
  Context& context_;
  Tape& tape_;
  int node_;
  bool deferred_;
};

class Function {
 public:
  virtual ~Function() = default;
  virtual std::string_view name() const = 0;
  // d(loss)/d(input) for each recorded input, undefined where the input is a constant. An undefined
  // output gradient means zero; one that nobody else holds may be overwritten (may_overwrite). All
  // are dropped after the call, as is the Function: it is called once. Nothing is recorded.
  virtual std::vector<Tensor> backward(BackwardContext& context,
                                       std::span<Tensor> output_gradients) = 0;
  // Gives the activation at the end of the only output away (BackwardContext::take_gate): backward
  // then receives the gradient of the value before it.
  virtual std::optional<ActivationGate> give_gate() { return {}; }
};

// True when this handle is the storage's only one, so that a result may take its place.
inline bool may_overwrite(const Tensor& tensor) {
  return tensor.defined() && tensor.storage().use_count() == 1;
}

}  // namespace shoal::nn
