// A recorded operation and the state that it keeps for backward.
//
//   struct Negate final : Function {  // y = -x
//     std::string_view name() const override { return "negate"; }
//     std::vector<Tensor> backward(BackwardContext& context, std::span<Tensor> dy) override {
//       if (!dy[0].defined()) return {Tensor()};  // zero
//       return {negated(context.context(), dy[0])};
//     }
//   };
//
// To write a differentiable operation (the collectives of parallel/ are Functions too), call
// context.records(inputs, parameters) and run the kernels. If it returned false, return constants.
// Otherwise record a Function on context.tape with the input Values, the used parameters and
// SavedTensors for backward. Read parameters through Parameter::value; do not save them. Recording
// needs tape.h, which is not installed: programs compose the operations of functional.h.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shoal/kernels/activation.h"
#include "shoal/nn/autograd/parameter.h"

namespace shoal::nn {

class Context;
class Tape;

// A tensor and the node that produced it. A Value without a tape is a constant.
struct Value {
  Tensor tensor;
  Tape* tape = nullptr;
  int node = -1;  // index on the tape
  int slot = 0;   // which output of that node
  bool needs_gradient() const { return tape != nullptr; }
};

// A tensor kept for backward. It remembers the storage's version: get() throws, naming the
// function, if the storage was modified in place. The tape's hooks can offload or compress it.
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

// An activation function fused into the end of an operation, and its input. The gradient of that
// input has activation'(input) as a factor.
struct ActivationGate {
  kernels::Activation activation = kernels::Activation::none;
  Tensor input;
};

// Operations available to Function::backward.
class BackwardContext {
 public:
  BackwardContext(Context& context, Tape& tape, int node, bool deferred)
      : context_(context), tape_(tape), node_(node), deferred_(deferred) {}
  Context& context() { return context_; }
  bool deferred() const { return deferred_; }
  // Schedules `work`, which adds to the gradients of `parameters`, and then ends one use of each.
  // Deferred: queued on the tape until Tape::run_deferred (W of a zero-bubble schedule). Otherwise:
  // run immediately, on Context::branch if it is set. The parameters must be among those recorded.
  // Frozen ones are skipped; if all are frozen, `work` does not run. `work` must own its tensors by
  // value, since the Function may be destroyed first.
  void weight_gradient(std::span<Parameter* const> parameters, std::function<void()> work) {
    weight_gradient(parameters, on_branch(std::move(work)), deferred_);
  }
  // Like weight_gradient(), but always runs immediately on backward's stream. For work that is
  // cheaper than the memory it would hold until W, or that also computes input gradients.
  void weight_gradient_at_once(std::span<Parameter* const> parameters, std::function<void()> work) {
    weight_gradient(parameters, std::move(work), false);
  }

  // For matrix products. Returns a gate if `input` has no other reader and was produced by an
  // operation that ends in an activation. The caller must then multiply the input's gradient by the
  // activation's derivative, typically in the product's epilogue. Call once.
  std::optional<ActivationGate> take_gate(int input);
  // Returns the gradient that the other readers of `input` have accumulated so far, if the tape
  // holds the only reference to it; otherwise an undefined tensor. The caller adds to it in place
  // and returns it as the input's gradient. Call once, and not together with a taken gate.
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

class Function {  // owned by its tape
 public:
  virtual ~Function() = default;
  virtual std::string_view name() const = 0;
  // Returns d(loss)/d(input) for each recorded input, undefined for a constant. An undefined output
  // gradient means zero. An output gradient with no other reference may be overwritten
  // (may_overwrite). Called once, without a tape; the gradients and the Function are dropped
  // afterwards.
  virtual std::vector<Tensor> backward(BackwardContext& context,
                                       std::span<Tensor> output_gradients) = 0;
  // Hands over the activation that produced the only output (BackwardContext::take_gate).
  // backward() then receives the gradient with respect to the activation's input.
  virtual std::optional<ActivationGate> give_gate() { return {}; }
};

// True if this handle is the storage's only reference, so that a result may reuse the storage.
inline bool may_overwrite(const Tensor& tensor) {
  return tensor.defined() && tensor.storage().use_count() == 1;
}

}  // namespace shoal::nn
