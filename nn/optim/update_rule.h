// Update rules: how one step changes flat f32 memory.
//
// A rule has no memory of its own. An Optimizer gives it segments, their states and the numbers of
// the step.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shoal/kernels/kernels.h"

namespace shoal::nn {

// The memory that an update reads and writes. All tensors are contiguous and have the same number
// of elements.
struct Segment {
  std::string name = {};  // name of the parameter
  Tensor master = {};     // f32 values to update; bf16 with `rounding`
  Tensor gradient = {};   // f32: sum over ranks and microbatches
  Tensor value = {};      // bf16/f16 copy to refresh; undefined if master is the parameter itself
  bool decays = true;
  bool in_norm = true;  // false if another rank counts the same elements in the gradient norm
  // Without a master, the bf16 parameter itself is updated and rounded stochastically (AdamW,
  // LAMB, Lion).
  std::optional<kernels::RoundingPlace> rounding = {};
};

// Sums of squares over a segment: of its masters before the update, and of the update at learning
// rate 1 and trust ratio 1.
struct SquareSums {
  double weight = 0, update = 0;
};

// Reductions over the ranks that update one model together. All of them make the same calls in the
// same order. This base class serves a single rank that holds the whole model.
class UpdateGroup {
 public:
  virtual ~UpdateGroup() = default;
  // Returns the sum of `mine` over all ranks with different segments. Replaces `*loss`, if not
  // null, by its sum over all ranks. Blocks.
  virtual double sum_squares(double mine, double* loss);
  // The same sum of squares, in place on an f64 [1] in device memory. Queued on `stream`; the host
  // does not wait.
  virtual void sum_squares_in_place(const Tensor& mine, Stream stream);
  // True if ranks hold parts of parameters; every rank returns the same. Rules that need whole
  // parameters (LAMB) then call sum_over_parts() once per update, even on a rank without segments.
  // sum_over_parts() replaces each segment's sums, in order, by the sums of its whole parameter. It
  // blocks.
  virtual bool has_parts() const;
  virtual void sum_over_parts(std::span<SquareSums> sums);
  // Called before the host waits for a device's `stream`, which may hold pending all-reduces. Waits
  // for these all-reduces with a deadline, because waiting for the stream has none.
  virtual void before_reading(Stream stream);
};

// One update of some segments. The tensors are on the kernels' device.
struct RuleStep {
  kernels::Kernels& kernels;
  std::span<const Segment> segments;
  std::span<const std::vector<Tensor>> states;  // [segment][UpdateRule::states()]
  const kernels::StepState& state;              // only kernels access it
  Tensor squares;                               // UpdateRule::needs_squares(): f64 [segments, 2]
  UpdateGroup& group;
  Stream stream;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::string name() const = 0;  // "AdamW"
  // PyTorch's names for the states kept per element, such as "exp_avg".
  virtual std::vector<std::string> states() const = 0;
  virtual bool rounds() const { return true; }  // supports segments with `rounding`
  virtual bool needs_squares() const { return false; }
  virtual void update(const RuleStep& step) const = 0;
};

struct AdamWOptions {  // torch.optim.AdamW's defaults, except Hugging Face's decay of 0
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
};
struct LionOptions {  // the paper's defaults
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
};
struct SgdOptions {
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};
struct LambOptions {
  AdamWOptions adam{.epsilon = 1e-6};
  double max_trust_ratio = 10;
};

// Weight decay applies to segments with `decays`. LAMB's trust ratios are per parameter if the
// group has parts, else per segment.
std::unique_ptr<UpdateRule> adamw(const AdamWOptions& options = {});
std::unique_ptr<UpdateRule> lion(const LionOptions& options = {});
std::unique_ptr<UpdateRule> sgd(const SgdOptions& options = {});
std::unique_ptr<UpdateRule> lamb(const LambOptions& options = {});

}  // namespace shoal::nn
