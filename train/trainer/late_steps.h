// What steps on a device came to, read when somebody wants to know it: no step waits for itself.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/nn/capture/late_numbers.h"
#include "shoal/nn/capture/staged_inputs.h"
#include "shoal/train/trainer/engine.h"

namespace shoal {

// All ranks make the same calls. No wait here is without a deadline: before the host waits for the
// stream, on which sums over ranks may stand for one that is lost, it waits for the ranks.
class LateSteps {
 public:
  // Of several ranks a host is at most so many steps ahead of what they have summed. Less than
  // steps' inputs are (StagedInputs), whose own wait for the stream then always finds it there.
  static constexpr std::size_t kAhead = 4;
  static_assert(kAhead < nn::StagedInputs::kAhead);

  // `stream` is what steps are queued on; `ranks` are all of theirs, with buffers there, and
  // outlive the object; `pinned`: LateNumbers'. Collective, as their host() is.
  LateSteps(Stream stream, collectives::Communicator& ranks, MemoryResource* pinned = nullptr)
      : stream_(stream), numbers_(stream, pinned), ranks_(ranks), host_(ranks.host()) {}

  // The step that was queued last: this rank's part of its loss, f32 [n] or undefined, in no sum
  // yet; its norm, f64 [1], the same on every rank; `last`, the last of what its ranks exchanged,
  // or null where there is one rank. Waits for the `last` of kAhead steps before, with the
  // Communicator's deadline; for nothing else.
  void note(const Tensor& losses, const Tensor& norm, collectives::WorkPtr last = nullptr);
  // Of the step noted last; waits for it. Those before it are kept for collect().
  StepDone last();
  // Of the steps that last() has not told of, in order; waits for them.
  std::vector<StepDone> collect();
  // With the Communicator's deadline, until no rank is waited for on the stream (Work::wait(),
  // watch()): before the host waits for it in any other way. Throws as they do.
  void wait_for_ranks();

 private:
  void read();

  Stream stream_;
  nn::LateNumbers numbers_;
  collectives::Communicator& ranks_;
  collectives::Communicator& host_;        // sums host values over the same ranks
  std::deque<collectives::WorkPtr> sums_;  // of the last steps, at most kAhead
  std::vector<StepDone> read_;
};

}  // namespace shoal
