#include "shoal/nn/optim/update_rule.h"

#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/autograd/parameter.h"
#include "shoal/nn/optim/parameter_place.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

View flat(const Tensor& tensor) {
  return tensor.defined() ? tensor.reshaped({tensor.count()}).view() : View{};
}
ConstView flat_const(const Tensor& tensor) {
  return tensor.reshaped({tensor.count()}).const_view();
}

std::vector<kernels::AdamWArgs> adamw_args(const RuleStep& step, const AdamWOptions& options) {
  std::vector<kernels::AdamWArgs> all;
  all.reserve(step.segments.size());
  for (std::size_t i = 0; i < step.segments.size(); ++i) {
    const Segment& segment = step.segments[i];
    kernels::AdamWArgs& args = all.emplace_back();
    args.master = flat(segment.master);
    args.first_moment = flat(step.states[i][0]);
    if (step.states[i].size() > 1) args.second_moment = flat(step.states[i][1]);
    args.gradient = flat_const(segment.gradient);
    args.parameter = flat(segment.value);
    args.rounding = segment.rounding;
    args.beta1 = options.beta1;
    args.beta2 = options.beta2;
    args.epsilon = options.epsilon;
    args.weight_decay = segment.decays ? options.weight_decay : 0;
    args.state = &step.state;
  }
  return all;
}

// Replaces the first count() sums of each segment by those of its whole parameter.
void sum_over_parts(const UpdateRule& rule, const RuleStep& step, const CountOf& count) {
  if (!step.group.has_parts()) return;
  if (!step.kernels.device().is_cpu()) step.group.before_reading(step.stream);
  std::vector<double> all(static_cast<std::size_t>(step.sums.count()));
  copy_to_host(all.data(), step.sums, step.stream);
  std::vector<std::span<double>> sums;
  double* at = all.data();
  for (const Segment& segment : step.segments) {
    const Shape parameter = whole_shape(segment);
    sums.emplace_back(at, static_cast<std::size_t>(count(parameter)));
    at += rule.sums(parameter);
  }
  step.group.sum_over_parts(sums, count);
  DeviceBackend& device = device_backend(step.stream.device.type);
  device.copy(step.sums.view().data, all.data(), step.sums.bytes(), step.stream);
  device.synchronize(step.stream);
}

class AdamW final : public UpdateRule {
 public:
  explicit AdamW(const AdamWOptions& options) : options_(options) {}
  std::string name() const override { return "AdamW"; }
  std::vector<RuleState> states(const Shape&) const override {
    return {{"exp_avg"}, {"exp_avg_sq"}};
  }
  void update(const RuleStep& step) const override {
    step.kernels.optimizer().adamw_many(adamw_args(step, options_), step.stream);
  }

 private:
  AdamWOptions options_;
};

class Lion final : public UpdateRule {
 public:
  explicit Lion(const LionOptions& options)
      : options_{
            .beta1 = options.beta1, .beta2 = options.beta2, .weight_decay = options.weight_decay} {}
  std::string name() const override { return "Lion"; }
  std::vector<RuleState> states(const Shape&) const override { return {{"exp_avg"}}; }
  void update(const RuleStep& step) const override {
    step.kernels.optimizer().lion_many(adamw_args(step, options_), step.stream);
  }

 private:
  AdamWOptions options_;
};

class Sgd final : public UpdateRule {
 public:
  explicit Sgd(const SgdOptions& options) : options_(options) {
    SHOAL_CHECK(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
                "Nesterov momentum needs a momentum and no dampening, not {} and {}",
                options.momentum, options.dampening);
  }
  std::string name() const override { return "SGD"; }
  std::vector<RuleState> states(const Shape&) const override {
    if (options_.momentum == 0) return {};
    return {{"momentum_buffer"}};
  }
  bool rounds() const override { return false; }
  void update(const RuleStep& step) const override {
    for (std::size_t i = 0; i < step.segments.size(); ++i) {
      const Segment& segment = step.segments[i];
      kernels::SgdArgs args;
      args.master = flat(segment.master);
      if (!step.states[i].empty()) args.momentum_buffer = flat(step.states[i][0]);
      args.gradient = flat_const(segment.gradient);
      args.parameter = flat(segment.value);
      args.momentum = options_.momentum;
      args.dampening = options_.dampening;
      args.weight_decay = segment.decays ? options_.weight_decay : 0;
      args.nesterov = options_.nesterov;
      args.state = &step.state;
      step.kernels.optimizer().sgd(args, step.stream);
    }
  }

 private:
  SgdOptions options_;
};

class Lamb final : public UpdateRule {
 public:
  explicit Lamb(const LambOptions& options) : options_(options) {}
  std::string name() const override { return "LAMB"; }
  std::vector<RuleState> states(const Shape&) const override {
    return {{"exp_avg"}, {"exp_avg_sq"}};
  }
  std::int64_t sums(const Shape&) const override { return 2; }
  void update(const RuleStep& step) const override {
    const std::vector<kernels::AdamWArgs> tensors = adamw_args(step, options_.adam);
    const kernels::LambArgs args{tensors, step.sums.view(), options_.max_trust_ratio};
    step.kernels.optimizer().lamb_moments(args, step.stream);
    sum_over_parts(*this, step, [](const Shape&) { return 2; });
    step.kernels.optimizer().lamb_apply(args, step.stream);
  }

 private:
  LambOptions options_;
};

class Adafactor final : public UpdateRule {
 public:
  explicit Adafactor(const AdafactorOptions& options) : options_(options) {}
  std::string name() const override { return "Adafactor"; }
  std::vector<RuleState> states(const Shape& parameter) const override {
    if (!matrix_place(parameter, parameter).is_matrix()) return {{"exp_avg_sq"}};
    return {{"exp_avg_sq_row", 1}, {"exp_avg_sq_col", 2}};
  }
  std::int64_t sums(const Shape& parameter) const override {
    return kernels::adafactor_room(matrix_place(parameter, parameter));
  }
  bool needs_places() const override { return true; }
  // On a device: rows, columns, the sum of u*u, the update. The host sums rows and columns at once.
  int gradient_reads() const override { return 4; }
  void update(const RuleStep& step) const override {
    const std::vector<kernels::AdamWArgs> tensors =
        adamw_args(step, {.epsilon = options_.epsilon, .weight_decay = options_.weight_decay});
    const kernels::AdafactorArgs args{.tensors = tensors,
                                      .places = step.places,
                                      .sums = step.sums.view(),
                                      .decay_rate = options_.decay_rate,
                                      .clip_threshold = options_.clip_threshold};
    kernels::OptimizerKernels& kernels = step.kernels.optimizer();
    kernels.adafactor_sums(args, step.stream);
    sum_over_parts(*this, step, [](const Shape& parameter) {
      return kernels::adafactor_added(matrix_place(parameter, parameter));
    });
    kernels.adafactor_moments(args, step.stream);
    sum_over_parts(*this, step, [](const Shape&) { return 1; });
    kernels.adafactor_apply(args, step.stream);
  }

 private:
  AdafactorOptions options_;
};

}  // namespace

Shape whole_shape(const Segment& segment) {
  return segment.parameter != nullptr ? segment.parameter->whole_shape() : segment.master.shape();
}

Shape state_shape(const RuleState& state, const Shape& parameter) {
  if (state.mean_over == 0) return parameter;
  std::vector<std::int64_t> sizes(parameter.sizes().begin(), parameter.sizes().end());
  sizes.erase(sizes.end() - state.mean_over);
  return Shape(std::span<const std::int64_t>(sizes));
}

double UpdateGroup::sum_squares(double mine, double*) { return mine; }
void UpdateGroup::sum_squares_in_place(const Tensor&, Stream) {}
bool UpdateGroup::has_parts() const { return false; }
void UpdateGroup::sum_over_parts(std::span<const std::span<double>>, const CountOf&) {}
void UpdateGroup::before_reading(Stream) {}

std::unique_ptr<UpdateRule> adamw(const AdamWOptions& options) {
  return std::make_unique<AdamW>(options);
}
std::unique_ptr<UpdateRule> lion(const LionOptions& options) {
  return std::make_unique<Lion>(options);
}
std::unique_ptr<UpdateRule> sgd(const SgdOptions& options) {
  return std::make_unique<Sgd>(options);
}
std::unique_ptr<UpdateRule> lamb(const LambOptions& options) {
  return std::make_unique<Lamb>(options);
}
std::unique_ptr<UpdateRule> adafactor(const AdafactorOptions& options) {
  return std::make_unique<Adafactor>(options);
}

}  // namespace shoal::nn
