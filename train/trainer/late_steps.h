// What steps on a device came to, read when somebody wants to know it: no step waits for it.
#pragma once

#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/nn/capture/late_numbers.h"
#include "shoal/train/trainer/engine.h"

namespace shoal {

// All ranks make the same calls.
class LateSteps {
 public:
  // `stream` is what steps are queued on, `host` sums host values over all of their ranks.
  LateSteps(Stream stream, collectives::Communicator& host) : numbers_(stream), host_(host) {}

  // The step that was queued last: this rank's part of its loss, f32 [n] or undefined, in no sum
  // yet; its norm, f64 [1], the same on every rank; `last`, the last of what its ranks exchanged,
  // or null, which is waited for before the stream is: it has a deadline. Waits for nothing.
  void note(const Tensor& losses, const Tensor& norm, collectives::WorkPtr last = nullptr);
  // Of the step noted last; waits for it. Those before it are kept for collect().
  StepDone last();
  // Of the steps that last() has not told of, in order; waits for them.
  std::vector<StepDone> collect();

 private:
  void read();

  nn::LateNumbers numbers_;
  collectives::Communicator& host_;
  collectives::WorkPtr last_;
  std::vector<StepDone> read_;
};

}  // namespace shoal
