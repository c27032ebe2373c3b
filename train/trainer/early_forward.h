// Runs a step's updates during the next step's forward (Trainer option ddp_overlap_forward; the
// idea of ByteScheduler, SOSP 2019). Each parameter is updated when its gradient has arrived from
// all ranks. The forward waits only for the parameter that it is about to use.
//
// Results are bitwise equal to those without overlap. If any rank's gradients are not finite, the
// whole step is skipped as usual: each rank checks its own gradients before they are summed, and
// the ranks agree before the first update. Finite gradients may still overflow when they are
// summed, which is found only after the updates began. Then only that parameter is skipped, and the
// skip is reported.
//
// Not thread-safe. Between begin_updates() and settle(), only a forward pass may run: the updates
// still use the gradients and write the values. The forward may write a parameter's gradient only
// after it has read that parameter.
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

// Calls `before_read` with each input of an operation, then runs the operation immediately.
class AskingDispatcher final : public nn::Dispatcher {
 public:
  std::function<void(const Tensor&)> before_read;  // may be empty
  void run(const nn::Operation& operation, const std::function<void()>& body) override;
};

class EarlyForward {
 public:
  // Call attach() before the first step. `left_out` is called with the name of each parameter that
  // is skipped because its sum overflowed.
  EarlyForward(kernels::Kernels& kernels, std::function<void(const std::string&)> left_out)
      : kernels_(kernels), left_out_(std::move(left_out)) {}
  void attach(parallel::Reducer& reducer, nn::Optimizer& optimizer,
              std::span<nn::Parameter* const> parameters);

  // Handlers for ReducerOptions::on_complete and on_reduced, and AskingDispatcher::before_read.
  void on_complete(nn::Parameter& parameter);
  void on_reduced(nn::Parameter& parameter);
  void before_read(const Tensor& tensor);

  // Call after backward: true if this rank saw only finite gradients since the last call.
  bool take_all_finite();
  // Call after Reducer::flush() if all ranks' gradients are finite. Advances `state`, which
  // the caller must not change until settle().
  void begin_updates(kernels::StepState& state, const nn::StepOptions& options);
  bool updating() const { return updating_; }
  // Waits for every gradient and ends the updates. Returns the global norm of the unscaled
  // gradients.
  double settle();

 private:
  kernels::Kernels& kernels_;
  const std::function<void(const std::string&)> left_out_;
  parallel::Reducer* reducer_ = nullptr;
  nn::Optimizer* optimizer_ = nullptr;
  std::unordered_map<const nn::Parameter*, std::size_t> segment_of_;
  std::map<const std::byte*, const nn::Parameter*> parameter_at_;  // by the address of its value
  bool all_finite_ = true, updating_ = false;
};

}  // namespace shoal
