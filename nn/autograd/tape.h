// The tape: operations in the order in which they ran (decision 7). One for each (stage,
// microbatch); several may be alive. Not thread-safe; belongs to the thread that runs forward.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "shoal/nn/autograd/function.h"

namespace shoal::nn {

// Packs a tensor when it is saved and gives it back in backward: offloading, compression.
struct SavedTensorHooks {
  // Returns how to get the tensor back, or an empty function to leave it alone.
  std::function<std::function<Tensor()>(const Tensor&)> pack;
};

class Tape {
 public:
  Tape();
  ~Tape();  // ends the uses of parameters that were never walked back
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // A leaf whose gradient is wanted (a pipeline stage's input).
  Value leaf(Tensor tensor);
  // Records `function`; begins a use of each parameter. Outputs are Values of the new node.
  std::vector<Value> record(std::unique_ptr<Function> function, std::span<const Value> inputs,
                            std::span<Parameter* const> parameters, std::vector<Tensor> outputs);

  // Walks back from `output` with d(loss)/d(output) = gradient (undefined: 1, for a one-element
  // output). Plain: weight gradients run as they appear, on context.branch where there is one,
  // which is joined at the end. deferred: they queue (zero-bubble B), until run_deferred (W), in
  // order. A tape is walked once; a second walk throws. An operation, its saved tensors and its
  // output gradients are dropped as soon as it was walked; what queued work needs lives until it
  // has run. Operations that the walk does not reach are dropped, their uses ended.
  struct Options {
    bool deferred = false;
  };
  void backward(Context& context, const Value& output, Tensor gradient, Options options);
  void backward(Context& context, const Value& output, Tensor gradient = {}) {
    backward(context, output, std::move(gradient), Options{});
  }
  void run_deferred();
  std::size_t deferred() const;

  // After backward: the gradient that reached a leaf; undefined when none did.
  Tensor gradient(const Value& leaf) const;
  // The same, and the tape holds it no longer: queued work may keep a tape for long.
  Tensor take_gradient(const Value& leaf);

  void set_saved_tensor_hooks(SavedTensorHooks hooks);
  const SavedTensorHooks& saved_tensor_hooks() const;
  std::size_t size() const;  // recorded operations

 private:
  friend class BackwardContext;
  void walk(Context& context, int from, bool deferred);
  void weight_gradient(int node, std::span<Parameter* const> parameters, std::function<void()> work,
                       bool defer);
  std::optional<ActivationGate> take_gate(int node, int input);
  Tensor take_sum(int node, int input);
  bool has_sum(int node, int input) const;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs fn(ctx, x) keeping only x; backward runs it again with the same random coordinates and walks
// that (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016). Peak activations of fn
// are one call's, at the cost of one more forward. fn must depend on nothing else that changes, and
// what it refers to must outlive the tape. May be nested. Parameters used inside become ready when
// the recomputation has been walked.
Value checkpoint(Context& context, const std::function<Value(Context&, const Value&)>& fn,
                 const Value& x);

}  // namespace shoal::nn
