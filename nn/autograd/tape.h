// The tape: recorded operations in execution order (decision 7). There is one per (stage,
// microbatch); several may be alive. Not thread-safe; used by the thread that runs forward.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "shoal/nn/autograd/function.h"

namespace shoal::nn {

// Packs a tensor when it is saved and restores it in backward, for offloading or compression.
struct SavedTensorHooks {
  // Returns a function that restores the tensor, or an empty function to keep it as it is.
  std::function<std::function<Tensor()>(const Tensor&)> pack;
};

class Tape {
 public:
  Tape();
  ~Tape();  // ends the parameter uses that backward did not reach
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // Adds a leaf whose gradient is wanted, such as the input of a pipeline stage.
  Value leaf(Tensor tensor);
  // Records `function`; begins a use of each parameter. Outputs are Values of the new node.
  std::vector<Value> record(std::unique_ptr<Function> function, std::span<const Value> inputs,
                            std::span<Parameter* const> parameters, std::vector<Tensor> outputs);

  // Walks back from `outputs`; `gradients` are d(loss)/d(output) of each. An undefined gradient
  // means 1 if `outputs` is one output of one element, and 0 if there are several. By default,
  // weight gradients run immediately, on context.branch if set; backward() joins the branch at its
  // end. With `deferred`, they queue in order (zero-bubble B) until run_deferred() (W). A tape is
  // walked once; a second walk throws. Each operation is dropped after it was walked, with its
  // saved tensors and output gradients. Queued work keeps its tensors until it has run. Operations
  // that the walk does not reach are dropped and their uses end.
  struct Options {
    bool deferred = false;
  };
  void backward(Context& context, std::span<const Value> outputs, std::vector<Tensor> gradients,
                Options options);
  void backward(Context& context, const Value& output, Tensor gradient, Options options) {
    backward(context, {&output, 1}, {std::move(gradient)}, options);
  }
  void backward(Context& context, const Value& output, Tensor gradient = {}) {
    backward(context, output, std::move(gradient), Options{});
  }
  void run_deferred();
  std::size_t deferred() const;

  // After backward: the gradient of a leaf; undefined if none reached it.
  Tensor gradient(const Value& leaf) const;
  // Like gradient(), but the tape releases it, since deferred work may keep a tape alive for long.
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

// Runs fn(context, inputs) and keeps only the inputs. Backward runs fn again with the same
// ForwardState and walks that tape (Chen et al., "Training Deep Nets with Sublinear Memory Cost",
// 2016). fn's inner activations then live only during its backward, at the cost of one more forward
// pass. Between the two runs nothing that fn reads may change, and everything it refers to must
// outlive the tape. Calls may be nested. Parameters used inside become ready when the recomputation
// has been walked.
using CheckpointedFunction =
    std::function<std::vector<Value>(Context&, std::span<const Value> inputs)>;
std::vector<Value> checkpoint(Context& context, const CheckpointedFunction& fn,
                              std::span<const Value> inputs);
// The same with one input and one output.
Value checkpoint(Context& context, const std::function<Value(Context&, const Value&)>& fn,
                 const Value& x);

}  // namespace shoal::nn
