// Update rules over flat f32 memory.
//
// An Optimizer knows segments, not modules: ranges of f32 numbers with their gradient, and where a
// 16-bit copy of them lives, or ranges of a bf16 parameter that is its own master. One rank may
// hold every parameter's segment, or only its shard of each: sharding composes an Optimizer by
// giving it fewer, shorter segments.
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

// What one update reads and writes. All tensors contiguous, of the same count.
struct Segment {
  std::string name = {};  // the parameter's
  Tensor master = {};     // f32: the numbers that are updated; bf16 with `rounding`
  Tensor gradient = {};   // f32: sums over ranks and microbatches
  Tensor value = {};  // bf16/f16 copy to refresh; undefined where master is the parameter itself
  bool decays = true;
  bool in_norm = true;  // false where another rank counts the same numbers in the gradients' norm
  // No master: the bf16 parameter itself is updated and rounded stochastically (AdamW, LAMB).
  std::optional<kernels::RoundingPlace> rounding = {};
};

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// Sums of squares of a segment's masters before an update, and of what the update takes from them
// at learning rate and trust ratio 1.
struct SquareSums {
  double weight = 0, update = 0;
};

struct StepOptions {
  double learning_rate = 0;
  // Number of the update, from 0, that learning_rate is of, where steps before may have been left
  // out and nobody has read that yet: then the rate is that of the update which the state says
  // comes next, of those given with the up to kernels::kRates steps before. Negative, or on the
  // host: learning_rate as it is.
  std::int64_t update = -1;
  // What losses are multiplied with by StepState (kernels/loss.h), where that is not their own
  // number.
  float inverse_targets = 1;
  double gradient_scale = 1;     // gradients are first multiplied with this (1 / loss scale)
  double max_gradient_norm = 0;  // 0: no clipping
  // Of f16: how the loss scale of the StepState, which losses were multiplied with beside 1 /
  // gradient_scale, follows the update.
  kernels::LossScaleRule scaling = {};
  // Turns this rank's sum of squares into that of all ranks whose segments differ; default: itself.
  // On a device the step then waits for the sum.
  std::function<double(double)> sum_over_shards = {};
  // The same of an f64 [1] in a device's memory, queued on its stream: instead of sum_over_shards
  // where the kernels are a device's. Nobody waits.
  std::function<void(const Tensor& sum, Stream stream)> sum_in_place = {};
  // Where segments are parts of parameters, for rules that weigh whole ones (LAMB): is given the
  // sums of each of segments(), in their order, and turns them into those of its whole parameter.
  // Called once a step, also where there is no segment; on a device the step waits for it. Default:
  // each segment is a whole parameter.
  std::function<void(std::span<SquareSums>)> sum_parts = {};
  // Called before the host waits for a device's `stream`, on which sums over ranks may be under
  // way: whoever queued them waits here with a deadline, since the wait itself has none. Default:
  // nothing.
  std::function<void(Stream stream)> before_reading = {};
};

struct StepOutcome {
  double gradient_norm = 0;  // global, unscaled, before clipping
  bool skipped = false;      // the norm was inf or NaN: nothing was changed
};

// `state` lies where the kernels are (autograd/device_values.h): only they look at it.

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Norm, clipping (as torch.nn.utils.clip_grad_norm_: factor max / (norm + 1e-6), at most 1) and
  // the update, in one pass over each segment after the norm. Advances state.step unless skipped.
  // On a device it waits for the outcome.
  StepOutcome step(kernels::StepState& state, const StepOptions& options, Stream stream = {});

  // step() in three, for who waits for nothing: what differs from step to step, before its forward
  // where losses read the state; the work, which may be captured and replayed (max_gradient_norm
  // and the sums of the options count); what came of the last one, which waits for it.
  void set_step(kernels::StepState& state, const StepOptions& options, Stream stream = {});
  void queue_step(kernels::StepState& state, const StepOptions& options, Stream stream = {});
  StepOutcome outcome(Stream stream = {}) const;
  // Where the norm of the last step is, [1] f64, for who reads it later. Skipped: it is not finite.
  const Tensor& norm() const { return norm_; }

  // The same piece by piece, for who gets gradients one after the other and clips nothing: begin()
  // advances `state`, then each segment is updated once, in any order. Same bits as step() with the
  // norm finite; nothing is skipped here.
  void begin(kernels::StepState& state, double learning_rate, double scale, Stream stream = {});
  // Of its gradient, not scaled; waits for it.
  double sum_of_squares(std::size_t segment, Stream stream = {});
  void update_segment(std::size_t segment, const kernels::StepState& state, Stream stream = {}) {
    update(segments_[segment], states_[segment], state, stream);
  }

  const std::vector<Segment>& segments() const { return segments_; }
  // "exp_avg/NAME", "exp_avg_sq/NAME" ..., sharing the optimizer's memory: what a checkpoint keeps
  // beside the masters, and what it is loaded into.
  std::vector<NamedTensor> state_tensors() const;
  std::int64_t state_bytes() const;

 protected:
  // Allocates `state_names` for each segment, zeroed, under MemoryTag::optimizer, in one block
  // each, of `states` where that is not null.
  Optimizer(kernels::Kernels& kernels, MemoryResource& memory, std::vector<Segment> segments,
            std::vector<std::string> state_names, MemoryResource* states);
  virtual void update(const Segment& segment, std::span<const Tensor> state,
                      const kernels::StepState& step, Stream stream) = 0;
  // Of all segments.
  virtual void update_all(const kernels::StepState& step, const StepOptions& options,
                          Stream stream);
  std::span<const Tensor> state_of(std::size_t segment) const { return states_[segment]; }
  kernels::Kernels& kernels() const { return kernels_; }
  // The option's, where the kernels are a device's.
  void before_reading(const StepOptions& options, Stream stream) const;

 private:
  kernels::Kernels& kernels_;
  std::vector<Segment> segments_;
  std::vector<std::string> state_names_;
  std::vector<std::vector<Tensor>> states_;  // [segment][state]
  Stream queue(Stream stream) const;         // the kernels' own for one that is not given
  Tensor sum_, norm_, zero_;                 // [1] f64: sum of squares, its root unscaled, 0
  Tensor rates_;  // [kernels::kRates] f32: StepNumbers::rates; of a device
};

struct AdamWOptions {  // torch.optim.AdamW's defaults but for the decay, which is Hugging Face's
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

// `kernels` and `memory` must outlive the result. Weight decay applies to segments that decay.
// `states`: where state_tensors() lie, if not in `memory`: pinned memory of the host, which a
// device's kernels read and write in place. It must outlive the result too.
std::unique_ptr<Optimizer> make_adamw(kernels::Kernels& kernels, MemoryResource& memory,
                                      std::vector<Segment> segments, const AdamWOptions& options,
                                      MemoryResource* states = nullptr);
std::unique_ptr<Optimizer> make_sgd(kernels::Kernels& kernels, MemoryResource& memory,
                                    std::vector<Segment> segments, const SgdOptions& options,
                                    MemoryResource* states = nullptr);
// Trust ratios are a segment's, or with StepOptions::sum_parts a parameter's.
std::unique_ptr<Optimizer> make_lamb(kernels::Kernels& kernels, MemoryResource& memory,
                                     std::vector<Segment> segments, const LambOptions& options,
                                     MemoryResource* states = nullptr);

}  // namespace shoal::nn
