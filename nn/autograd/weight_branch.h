// Computes weight gradients concurrently with the rest of backward. No later part of backward reads
// them, and kernels of a small step fill only a fraction of a device, so they run on a stream of
// their own. A captured step keeps that stream as a branch of its graph. The results equal those of
// one stream.
//
// Set it as Context::branch before Tape::backward, which joins it at the end. Do not use it if
// parameter hooks (Parameter::end_use) read gradients: they run when the work is queued.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "shoal/runtime/device/device.h"

namespace shoal::nn {

class Context;

// True if a captured step with this many positions per microbatch should use a branch
// (SHOAL_CAPTURE_BRANCHES). In larger steps each kernel fills the device, and a branch would hold
// more memory.
bool wants_weight_branch(std::int64_t positions);

class WeightBranch {
 public:
  // `most`: maximum number of pending works. Beyond it, the context's stream waits for the oldest
  // work, and that work's tensors are released.
  explicit WeightBranch(Device device, std::size_t most = 16);
  ~WeightBranch();  // waits for the branch
  WeightBranch(const WeightBranch&) = delete;
  WeightBranch& operator=(const WeightBranch&) = delete;

  // Calls `work`, which queues kernels on context.stream. During the call, context.stream is the
  // branch's stream, ordered after everything queued so far. `work` and the tensors it owns live
  // until the context's stream has waited for it. If `work` throws, the error propagates; then call
  // give_up().
  void run(Context& context, std::function<void()> work);
  // Orders work queued on context.stream from now on after all work of the branch.
  void join(const Context& context);
  // After a failure: waits for the queued work, or drops it if the step is being captured.
  void give_up() noexcept;

 private:
  void wait_for_oldest(Stream stream);
  std::size_t place(std::size_t index) const { return (oldest_ + index) % works_.size(); }

  struct Work {
    Event done;
    std::function<void()> work = {};
  };
  OwnedStream stream_;
  Event ready_;
  std::vector<Work> works_;  // ring buffer
  std::size_t oldest_ = 0, under_way_ = 0;
};

}  // namespace shoal::nn
