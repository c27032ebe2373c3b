// Update rules: how one step changes flat f32 memory.
//
// A rule has no memory of its own. An Optimizer gives it segments, their states and the numbers of
// the step.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shoal/kernels/kernels.h"

namespace shoal::nn {

class Parameter;

// The memory that an update reads and writes. All tensors are contiguous and have the same number
// of elements.
struct Segment {
  std::string name = {};  // name of the parameter
  Tensor master = {};     // f32 values to update; bf16 with `rounding`
  Tensor gradient = {};   // f32: sum over ranks and microbatches
  Tensor value = {};      // bf16/f16 copy to refresh; undefined if master is the parameter itself
  bool decays = true;
  bool in_norm = true;  // false if another rank counts the same elements in the gradient norm
  // Without a master, the bf16 parameter itself is updated and rounded stochastically (all rules
  // but SGD).
  std::optional<kernels::RoundingPlace> rounding = {};
  // The parameter, and the segment's first element in this rank's part of it. Null: the segment is
  // a whole parameter, of the master's shape.
  const Parameter* parameter = nullptr;
  std::int64_t first = 0;
};
Shape whole_shape(const Segment& segment);  // of the whole parameter

// f32 numbers that a rule keeps for a parameter.
struct RuleState {
  std::string name = {};  // PyTorch's, such as "exp_avg"
  // 0: one for each element of the segment. 1 or 2: means over the last dimension or the one before
  // it, of the whole parameter; every rank with a segment of the parameter keeps all of them.
  int mean_over = 0;
};
// Shape of the state of a parameter of this shape: without the dimension that it is a mean over.
Shape state_shape(const RuleState& state, const Shape& parameter);

// Called with the shape of a whole parameter.
using CountOf = std::function<std::int64_t(const Shape& parameter)>;

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
  // True if ranks hold parts of parameters; every rank returns the same. Rules that need sums over
  // whole parameters then call sum_over_parts(), even on a rank without segments: LAMB once per
  // update, Adafactor twice. It replaces each segment's sums, as many as `count` says for the shape
  // of its parameter, by the sums over the parameter's segments. It blocks.
  virtual bool has_parts() const;
  virtual void sum_over_parts(std::span<const std::span<double>> sums, const CountOf& count);
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
  Tensor sums;                                  // f64: UpdateRule::sums() of each segment, in order
  std::span<const kernels::MatrixPlace> places;  // of the segments, if UpdateRule::needs_places()
  UpdateGroup& group;
  Stream stream;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::string name() const = 0;  // "AdamW"
  // States of a parameter of this shape (of the whole one).
  virtual std::vector<RuleState> states(const Shape& parameter) const = 0;
  // f64 numbers that update() needs for a segment of it, without meaning between updates.
  virtual std::int64_t sums(const Shape&) const { return 0; }
  virtual bool needs_places() const { return false; }
  virtual bool rounds() const { return true; }      // supports segments with `rounding`
  virtual int gradient_reads() const { return 1; }  // how often an update reads the gradient
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

struct AdafactorOptions {  // as transformers' Trainer makes it (kernels/optimizer.h)
  double weight_decay = 0, epsilon = 1e-30, clip_threshold = 1, decay_rate = -0.8;
};

// Weight decay applies to segments with `decays`. LAMB's trust ratios and Adafactor's means are per
// parameter if the group has parts, else per segment.
std::unique_ptr<UpdateRule> adamw(const AdamWOptions& options = {});
std::unique_ptr<UpdateRule> lion(const LionOptions& options = {});
std::unique_ptr<UpdateRule> sgd(const SgdOptions& options = {});
std::unique_ptr<UpdateRule> lamb(const LambOptions& options = {});
std::unique_ptr<UpdateRule> adafactor(const AdafactorOptions& options = {});

}  // namespace shoal::nn
