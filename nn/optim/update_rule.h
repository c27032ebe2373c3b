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

// Sums of squares of a segment's masters before the update, and of the update at learning rate and
// trust ratio 1.
struct SquareSums {
  double weight = 0, update = 0;
};

// The ranks that update one model together: the sums over them that an update needs. All ranks make
// the same calls in the same order. This class itself is a single rank that has the whole model.
class UpdateGroup {
 public:
  virtual ~UpdateGroup() = default;
  // Turns this rank's sum of squares into the sum over all ranks with different segments, and
  // `*loss`, if not null, into its sum over all ranks. Blocks.
  virtual double sum_squares(double mine, double* loss);
  // The same for an f64 [1] in device memory, queued on its stream; the host does not wait.
  virtual void sum_squares_in_place(const Tensor& mine, Stream stream);
  // True if ranks have parts of parameters, the same on every rank. Rules that need whole
  // parameters (LAMB) then call sum_over_parts() once per update, even without segments. It
  // replaces the sums of each segment, in order, by those of its whole parameter. Blocks.
  virtual bool has_parts() const;
  virtual void sum_over_parts(std::span<SquareSums> sums);
  // Called before the host waits for a device's `stream`, which may hold pending all-reduces. Waits
  // for those with a deadline, since the stream wait itself has none.
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
  // Names of the numbers kept per element, as PyTorch calls them: "exp_avg".
  virtual std::vector<std::string> states() const = 0;
  virtual bool rounds() const { return true; }  // updates segments with `rounding`
  virtual bool needs_squares() const { return false; }
  virtual void update(const RuleStep& step) const = 0;
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

// Weight decay applies to segments with `decays`. LAMB's trust ratios are per parameter if the
// group has parts, else per segment.
std::unique_ptr<UpdateRule> adamw(const AdamWOptions& options = {});
std::unique_ptr<UpdateRule> sgd(const SgdOptions& options = {});
std::unique_ptr<UpdateRule> lamb(const LambOptions& options = {});

}  // namespace shoal::nn
