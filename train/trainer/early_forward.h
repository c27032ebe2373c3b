// Lets a step's updates run behind the next step's forward: each parameter is updated when its
// gradient has arrived from all ranks, and forward waits only for what it is about to use
// (Trainer option ddp_overlap_forward; the idea of ByteScheduler, SOSP 2019).
//
// The bits are those of a step that waits for everything. Where this rank's or another's gradients
// are not finite the step is left out as a whole, as ever: each rank looks at its own gradients
// before they are summed, and the ranks agree before the first update. What cannot be known then
// is that finite gradients overflow in their sum: that parameter alone is left out, and said.
//
// One thread. Between begin_updates() and settle() gradients and not yet updated values belong to
// the updates; only forward may run, and write gradients only of parameters that it has read.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "shoal/nn/autograd/dispatcher.h"
#include "shoal/nn/autograd/parameter.h"
#include "shoal/nn/optim/optimizer.h"
#include "shoal/parallel/data/reducer.h"

namespace shoal {

// Runs each operation at once, after `before_read` has been called with each of its inputs.
class AskingDispatcher final : public nn::Dispatcher {
 public:
  std::function<void(const Tensor&)> before_read;  // may be empty
  void run(const nn::Operation& operation, const std::function<void()>& body) override;
};

class EarlyForward {
 public:
  // Of a Reducer that calls the two functions below and of an Optimizer over its parameters, which
  // are set before the first step. `left_out` is told of a parameter whose sum overflowed.
  EarlyForward(kernels::Kernels& kernels, std::function<void(const std::string&)> left_out)
      : kernels_(kernels), left_out_(std::move(left_out)) {}
  void attach(parallel::Reducer& reducer, nn::Optimizer& optimizer,
              std::span<nn::Parameter* const> parameters);

  // For ReducerOptions::on_complete and on_reduced, and AskingDispatcher::before_read.
  void on_complete(nn::Parameter& parameter);
  void on_reduced(nn::Parameter& parameter);
  void before_read(const Tensor& tensor);

  // After backward: whether this rank saw only finite gradients since the last call.
  bool take_all_finite();
  // After Reducer::flush(), all ranks' gradients finite: advances `state`, which must stay as it is
  // until settle() but for what forward does not change.
  void begin_updates(kernels::StepState& state, const nn::StepOptions& options);
  bool updating() const { return updating_; }
  // Waits for every gradient, ends the updates; the global norm of the gradients, unscaled.
  double settle();

 private:
  kernels::Kernels& kernels_;
  const std::function<void(const std::string&)> left_out_;
  parallel::Reducer* reducer_ = nullptr;
  nn::Optimizer* optimizer_ = nullptr;
  kernels::StepState* state_ = nullptr;
  std::unordered_map<const nn::Parameter*, std::size_t> segment_of_;
  std::map<const std::byte*, const nn::Parameter*> parameter_at_;  // by the address of its value
  std::vector<double> squares_;                                    // by segment, of this step
  double gradient_scale_ = 1;
  bool all_finite_ = true, updating_ = false;
};

}  // namespace shoal
