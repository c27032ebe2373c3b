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
  // With several ranks, limit of steps by which a host runs ahead of the last step that the ranks
  // have summed. Smaller than the limit of steps' inputs (StagedInputs), so their wait for the
  // stream never blocks.
  static constexpr std::size_t kAhead = 4;
  static_assert(kAhead < nn::StagedInputs::kAhead);

  // `stream`: steps are queued on it. `ranks`: all ranks of the steps, with buffers on that device;
  // must outlive the object. `pinned`: memory for DeferredResults. Collective, because it calls
  // ranks.host().
  StepResults(Stream stream, collectives::Communicator& ranks, MemoryResource* pinned = nullptr)
      : stream_(stream), numbers_(stream, pinned), ranks_(ranks), host_(ranks.host()) {}

  // Notes the step that was queued last. `losses`: this rank's part of its loss, f32 [n] or
  // undefined, not yet summed. `norm`: f64 [1], the same on every rank. `last`: the last operation
  // that its ranks exchanged, null with one rank. Waits only for the `last` of kAhead steps before,
  // with the Communicator's deadline.
  void note(const Tensor& losses, const Tensor& norm, collectives::WorkPtr last = nullptr);
  // Result of the step noted last; waits for it. Results of earlier steps are kept for collect().
  StepDone last();
  // Results of the steps that last() has not returned, in order; waits for them.
  std::vector<StepDone> collect();
  // Waits, with the Communicator's deadline, until the stream waits for no rank (Work::wait(),
  // watch()). Call it before the host waits for the stream in any other way. Throws as those calls
  // do.
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
