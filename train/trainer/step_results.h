// Results of device steps, read only when needed: no step waits for its own results.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/nn/capture/deferred_results.h"
#include "shoal/nn/capture/staged_inputs.h"
#include "shoal/train/trainer/step_work.h"

namespace shoal {

// All ranks make the same calls. Every wait has a deadline: a lost rank could block the stream in a
// sum, so the host waits for the ranks before it waits for the stream.
class StepResults {
 public:
  // With several ranks: the number of steps that the host may queue beyond the last step whose sums
  // are complete. Smaller than StagedInputs' limit, so that StagedInputs never blocks to wait for
  // the stream.
  static constexpr std::size_t kAhead = 4;
  static_assert(kAhead < nn::StagedInputs::kAhead);

  // `stream`: steps are queued on it. `ranks`: all ranks of the steps, with buffers on that device;
  // must outlive the object. `pinned`: memory for DeferredResults. Collective, because it calls
  // ranks.host().
  StepResults(Stream stream, collectives::Communicator& ranks, MemoryResource* pinned = nullptr)
      : stream_(stream), numbers_(stream, pinned), ranks_(ranks), host_(ranks.host()) {}

  // Records the step that was queued last. `losses`: this rank's part of the step's loss, f32 [n]
  // or undefined, not yet summed. `norm`: f64 [1], the same on every rank. `last`: the step's last
  // collective operation; null with one rank. Waits only for the `last` of the step kAhead earlier,
  // at most until the Communicator's deadline.
  void note(const Tensor& losses, const Tensor& norm, collectives::WorkPtr last = nullptr);
  // Waits for the step recorded last and returns its result. Results of earlier steps are kept for
  // collect().
  StepDone last();
  // Waits for the steps that last() has not returned, and returns their results in order.
  std::vector<StepDone> collect();
  // Waits, at most until the Communicator's deadline, until no queued work on the stream waits for
  // another rank (Work::wait(), watch()). Call it before the host waits for the stream in any other
  // way. Throws the errors of Work::wait() and watch().
  void wait_for_ranks();

 private:
  void read();

  Stream stream_;
  nn::DeferredResults numbers_;
  collectives::Communicator& ranks_;
  collectives::Communicator& host_;        // sums host values over the same ranks
  std::deque<collectives::WorkPtr> sums_;  // of the last steps, at most kAhead
  std::vector<StepDone> read_;
};

}  // namespace shoal
