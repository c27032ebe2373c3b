// Steps an update rule over flat f32 memory.
//
//   Optimizer optimizer(kernels, memory, masters.segments(), adamw({.weight_decay = 0.1}));
//   const StepOutcome outcome = optimizer.step(*state, {.learning_rate = 1e-3});
//
// An Optimizer works on segments, not modules. A segment is a range of f32 numbers with its
// gradient and an optional 16-bit copy, or a range of a bf16 parameter that is its own master. A
// rank may hold a segment for every parameter, or only a shard of each: sharding passes fewer,
// shorter segments.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shoal/nn/autograd/parameter.h"
#include "shoal/nn/optim/update_rule.h"

namespace shoal::nn {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// A state of a segment, in the optimizer's memory.
struct StateTensor {
  std::size_t segment = 0;
  RuleState state;
  Tensor tensor;
};

struct StepOptions {
  double learning_rate = 0;
  double gradient_scale = 1;     // multiplies the gradients first (1 / loss scale)
  double max_gradient_norm = 0;  // 0: no clipping
  // Zero-based update index that `learning_rate` belongs to. If earlier steps may have been
  // skipped, the device picks the rate of the update it actually reached, from those of the last
  // kernels::kRates steps. Negative, or on the host: `learning_rate` is used as it is.
  std::int64_t update = -1;
  // 1 / the number of targets in the step. Set it if the host did not scale the losses by it;
  // kernels then scale them through StepState (kernels/loss.h).
  float inverse_targets = 1;
  // For f16: adjusts the loss scale in StepState after the update. Losses were multiplied by that
  // scale and by 1 / gradient_scale.
  kernels::LossScaleRule scaling = {};
  // Host only, may be null. In: this rank's part of the step's loss. Out: the sum over all ranks,
  // computed by the same reduction as the norm.
  double* loss = nullptr;
};

struct StepOutcome {
  double gradient_norm = 0;  // global, unscaled, before clipping
  bool skipped = false;      // the norm was inf or NaN; nothing was changed
};

// `state` is on the kernels' device (autograd/device_values.h). Only kernels access it.

class Optimizer {
 public:
  // Allocates the rule's states, zeroed, under MemoryTag::optimizer, in one block per name. The
  // blocks come from `states` if it is not null, such as pinned host memory that a device's kernels
  // access in place. `group`: the ranks that update the model together; null: only this rank.
  // Everything but `segments` and `rule` must outlive the object.
  Optimizer(kernels::Kernels& kernels, MemoryResource& memory, std::vector<Segment> segments,
            std::unique_ptr<UpdateRule> rule, MemoryResource* states = nullptr,
            UpdateGroup* group = nullptr);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Computes the norm, then clips and updates each segment in one pass. The clip factor is min(1,
  // max / (norm + 1e-6)), as in torch.nn.utils.clip_grad_norm_. Advances state.step unless the step
  // is skipped. On a device, the host waits for the outcome.
  StepOutcome step(kernels::StepState& state, const StepOptions& options, Stream stream = {});

  // step() in three parts that the caller can queue without waiting. set_step() stores the values
  // that change per step; call it before the forward pass if losses read the state. queue_step()
  // queues the work, which may be captured; a replay uses the captured max_gradient_norm and group.
  // outcome() waits for the last step's result.
  void set_step(kernels::StepState& state, const StepOptions& options, Stream stream = {});
  void queue_step(kernels::StepState& state, const StepOptions& options, Stream stream = {});
  StepOutcome outcome(Stream stream = {}) const;
  // Norm of the last step, [1] f64, for a later read. Not finite if the step was skipped.
  const Tensor& norm() const { return norm_; }

  // Segment-wise stepping without clipping, for gradients that arrive one after the other. begin()
  // advances `state`. Then call update_segment() once per segment, in any order; it returns false
  // and leaves the segment unchanged if the gradient is not finite. end() returns the norm. If the
  // norm is finite, the results equal those of step() bit by bit. All three block.
  void begin(kernels::StepState& state, const StepOptions& options, Stream stream = {});
  bool update_segment(std::size_t segment, Stream stream = {});
  double end();

  const std::vector<Segment>& segments() const { return segments_; }
  // Segment by segment. A checkpoint saves and loads them together with the masters.
  std::vector<StateTensor> state_tensors() const;

 private:
  void allocate(MemoryResource& memory, MemoryResource& states);
  void update(std::size_t first, std::size_t count, const kernels::StepState& state,
              UpdateGroup& group, Stream stream);
  void before_reading(Stream stream) const;
  Stream queue(Stream stream) const;  // the kernels' stream if none was given

  kernels::Kernels& kernels_;
  const std::vector<Segment> segments_;
  const std::unique_ptr<UpdateRule> rule_;
  UpdateGroup alone_;
  UpdateGroup& group_;
  std::vector<std::vector<RuleState>> kinds_;  // [segment][state]
  std::vector<std::vector<Tensor>> states_;    // the same
  Tensor sums_;                                // f64; those of segment i begin at sums_at_[i]
  std::vector<std::int64_t> sums_at_;
  std::vector<kernels::MatrixPlace> places_;  // of the segments, if the rule needs them
  Tensor sum_, norm_, zero_;                  // [1] f64: sum of squares, unscaled norm, 0
  Tensor rates_;  // [kernels::kRates] f32 (StepNumbers::rates); device only
  // Between begin() and end():
  kernels::StepState* state_ = nullptr;
  double scale_ = 1;
  std::vector<double> segment_squares_;  // 0: not updated
};

}  // namespace shoal::nn
