// Gradients of weights beside backward. Nothing in backward waits for them, and kernels of a small
// step fill a fraction of a device each, so they may run on a stream of their own, which a captured
// step keeps as a branch of its graph. The numbers are those of one stream.
//
// Set as Context::branch before Tape::backward, which joins it at its end. Not where somebody reads
// gradients before that: hooks of parameters (Parameter::end_use) fire when the work is queued.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "shoal/runtime/device/device.h"

namespace shoal::nn {

class Context;

// Whether a captured step with so many positions in a microbatch is to have one:
// SHOAL_CAPTURE_BRANCHES. Larger ones fill a device with each kernel, and would hold more memory.
bool wants_weight_branch(std::int64_t positions);

class WeightBranch {
 public:
  // `most`: works under way at once. A further one lets the context's stream wait for the oldest,
  // so that what they hold is given back.
  explicit WeightBranch(Device device, std::size_t most = 16);
  ~WeightBranch();  // waits for the branch
  WeightBranch(const WeightBranch&) = delete;
  WeightBranch& operator=(const WeightBranch&) = delete;

  // Calls `work`, which queues kernels on context.stream: that is the branch's then, and behind
  // what was queued before. `work` and the tensors it owns live until the context's own stream
  // has waited for it. What it throws goes on; then give_up().
  void run(Context& context, std::function<void()> work);
  // What is queued on context.stream from here on comes behind all of it.
  void join(const Context& context);
  // After a failure: waits for what was queued, or, while a step is captured, forgets it.
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
  std::vector<Work> works_;  // a ring
  std::size_t oldest_ = 0, under_way_ = 0;
};

}  // namespace shoal::nn
