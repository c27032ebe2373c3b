// Update rules over flat f32 memory.
//
// An Optimizer works on segments, not modules. A segment is a range of f32 numbers with its
// gradient and an optional 16-bit copy, or a range of a bf16 parameter that is its own master. A
// rank may hold a segment for every parameter, or only a shard of each: sharding passes fewer,
// shorter segments.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/parameter.h"

namespace shoal::nn {

// Input and output of one update. All tensors are contiguous and have the same count.
struct Segment {
  std::string name = {};  // name of the parameter
  Tensor master = {};     // f32 values to update; bf16 with `rounding`
  Tensor gradient = {};   // f32: sum over ranks and microbatches
  Tensor value = {};      // bf16/f16 copy to refresh; undefined if master is the parameter itself
  bool decays = true;
  bool in_norm = true;  // false if another rank counts the same elements in the gradient norm
  // Without a master, the bf16 parameter itself is updated and rounded stochastically (AdamW,
  // LAMB).
  std::optional<kernels::RoundingPlace> rounding = {};
};

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// Sums of squares of a segment's masters before the update, and of the update at learning rate and
// trust ratio 1.
struct SquareSums {
  double weight = 0, update = 0;
};

struct StepOptions {
  double learning_rate = 0;
  // Zero-based update index that `learning_rate` belongs to. If earlier steps may have been
  // skipped, the device picks the rate of the update it actually reached, from those of the last
  // kernels::kRates steps. Negative, or on the host: `learning_rate` is used as it is.
  std::int64_t update = -1;
  // 1 / the step's targets, if the host did not apply it to the losses: StepState then scales them
  // (kernels/loss.h).
  float inverse_targets = 1;
  double gradient_scale = 1;     // multiplies the gradients first (1 / loss scale)
  double max_gradient_norm = 0;  // 0: no clipping
  // For f16: how the StepState's loss scale follows the update. Losses were multiplied by it and by
  // 1 / gradient_scale.
  kernels::LossScaleRule scaling = {};
  // Turns this rank's sum of squares into the sum over all ranks with different segments. Default:
  // unchanged. On a device, the host waits for the sum.
  std::function<double(double)> sum_over_shards = {};
  // The same for an f64 [1] in device memory, queued on its stream. Used instead of sum_over_shards
  // with device kernels; the host does not wait.
  std::function<void(const Tensor& sum, Stream stream)> sum_in_place = {};
  // For rules that need whole parameters (LAMB) when segments are shards. It replaces the sums of
  // each of segments(), in order, by those of its whole parameter. Called once per step, even
  // without segments; on a device, the host waits. Default: each segment is a whole parameter.
  std::function<void(std::span<SquareSums>)> sum_parts = {};
  // Called before the host waits for a device's `stream`, which may hold pending all-reduces. It
  // waits for those with a deadline, since the stream wait itself has none. Default: nothing.
  std::function<void(Stream stream)> before_reading = {};
};

struct StepOutcome {
  double gradient_norm = 0;  // global, unscaled, before clipping
  bool skipped = false;      // the norm was inf or NaN; nothing was changed
};

// `state` is on the kernels' device (autograd/device_values.h). Only kernels access it.

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Computes the norm, clips and updates, in one pass over each segment after the norm. Clips by
  // min(1, max / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_. Advances state.step unless
  // skipped. On a device, the host waits for the outcome.
  StepOutcome step(kernels::StepState& state, const StepOptions& options, Stream stream = {});

  // step() in three parts that the caller can queue without waiting. set_step() stores the values
  // that change per step; call it before the forward pass if losses read the state. queue_step()
  // queues the work, which may be captured and replayed with its max_gradient_norm and sum
  // callbacks. outcome() waits for the last step's result.
  void set_step(kernels::StepState& state, const StepOptions& options, Stream stream = {});
  void queue_step(kernels::StepState& state, const StepOptions& options, Stream stream = {});
  StepOutcome outcome(Stream stream = {}) const;
  // Norm of the last step, [1] f64, for a later read. Not finite if the step was skipped.
  const Tensor& norm() const { return norm_; }

  // Segment-wise stepping, if gradients arrive one after the other without clipping. begin()
  // advances `state`; then each segment is updated once, in any order. The results equal step()
  // with a finite norm, bit by bit; nothing is skipped.
  void begin(kernels::StepState& state, double learning_rate, double scale, Stream stream = {});
  // Sum of squares of the segment's unscaled gradient. Waits for it.
  double sum_of_squares(std::size_t segment, Stream stream = {});
  void update_segment(std::size_t segment, const kernels::StepState& state, Stream stream = {}) {
    update(segments_[segment], states_[segment], state, stream);
  }

  const std::vector<Segment>& segments() const { return segments_; }
  // "exp_avg/NAME", "exp_avg_sq/NAME" ..., sharing the optimizer's memory. A checkpoint saves and
  // loads them beside the masters.
  std::vector<NamedTensor> state_tensors() const;
  std::int64_t state_bytes() const;

 protected:
  // Allocates `state_names` for each segment, zeroed, under MemoryTag::optimizer, in one block per
  // name. The blocks come from `states` if it is not null.
  Optimizer(kernels::Kernels& kernels, MemoryResource& memory, std::vector<Segment> segments,
            std::vector<std::string> state_names, MemoryResource* states);
  virtual void update(const Segment& segment, std::span<const Tensor> state,
                      const kernels::StepState& step, Stream stream) = 0;
  // Updates all segments.
  virtual void update_all(const kernels::StepState& step, const StepOptions& options,
                          Stream stream);
  std::span<const Tensor> state_of(std::size_t segment) const { return states_[segment]; }
  kernels::Kernels& kernels() const { return kernels_; }
  // Calls options.before_reading if the kernels are on a device.
  void before_reading(const StepOptions& options, Stream stream) const;

 private:
  kernels::Kernels& kernels_;
  std::vector<Segment> segments_;
  std::vector<std::string> state_names_;
  std::vector<std::vector<Tensor>> states_;  // [segment][state]
  Stream queue(Stream stream) const;         // the kernels' stream if none was given
  Tensor sum_, norm_, zero_;                 // [1] f64: sum of squares, unscaled norm, 0
  Tensor rates_;  // [kernels::kRates] f32 (StepNumbers::rates); device only
};

struct AdamWOptions {  // torch.optim.AdamW's defaults, except Hugging Face's decay of 0
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
};
struct SgdOptions {
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};
struct LambOptions {
  AdamWOptions adam{.epsilon = 1e-6};
  double max_trust_ratio = 10;
};

// `kernels` and `memory` must outlive the result. Weight decay applies to segments with `decays`.
// `states`: memory of state_tensors() if not `memory`, such as pinned host memory that a device's
// kernels access in place. It must outlive the result, too.
std::unique_ptr<Optimizer> make_adamw(kernels::Kernels& kernels, MemoryResource& memory,
                                      std::vector<Segment> segments, const AdamWOptions& options,
                                      MemoryResource* states = nullptr);
std::unique_ptr<Optimizer> make_sgd(kernels::Kernels& kernels, MemoryResource& memory,
                                    std::vector<Segment> segments, const SgdOptions& options,
                                    MemoryResource* states = nullptr);
// Trust ratios are per segment, or per parameter with StepOptions::sum_parts.
std::unique_ptr<Optimizer> make_lamb(kernels::Kernels& kernels, MemoryResource& memory,
                                     std::vector<Segment> segments, const LambOptions& options,
                                     MemoryResource* states = nullptr);

}  // namespace shoal::nn
