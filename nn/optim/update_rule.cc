#include "shoal/nn/optim/update_rule.h"

#include "shoal/nn/autograd/device_values.h"
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

class AdamW final : public UpdateRule {
 public:
  explicit AdamW(const AdamWOptions& options) : options_(options) {}
  std::string name() const override { return "AdamW"; }
  std::vector<std::string> states() const override { return {"exp_avg", "exp_avg_sq"}; }
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
  std::vector<std::string> states() const override { return {"exp_avg"}; }
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
  std::vector<std::string> states() const override {
    return options_.momentum != 0 ? std::vector<std::string>{"momentum_buffer"}
                                  : std::vector<std::string>{};
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
  std::vector<std::string> states() const override { return {"exp_avg", "exp_avg_sq"}; }
  bool needs_squares() const override { return true; }
  void update(const RuleStep& step) const override {
    const std::vector<kernels::AdamWArgs> tensors = adamw_args(step, options_.adam);
    const kernels::LambArgs args{tensors, step.squares.view(), options_.max_trust_ratio};
    step.kernels.optimizer().lamb_moments(args, step.stream);
    if (step.group.has_parts()) sum_over_parts(step);
    step.kernels.optimizer().lamb_apply(args, step.stream);
  }

 private:
  static void sum_over_parts(const RuleStep& step) {
    if (!step.kernels.device().is_cpu()) step.group.before_reading(step.stream);
    std::vector<SquareSums> sums(step.segments.size());
    static_assert(sizeof(SquareSums) == 2 * sizeof(double));
    copy_to_host(sums.data(), step.squares, step.stream);
    step.group.sum_over_parts(sums);
    DeviceBackend& device = device_backend(step.stream.device.type);
    device.copy(step.squares.view().data, sums.data(), step.squares.bytes(), step.stream);
    device.synchronize(step.stream);
  }

  LambOptions options_;
};

}  // namespace

double UpdateGroup::sum_squares(double mine, double*) { return mine; }
void UpdateGroup::sum_squares_in_place(const Tensor&, Stream) {}
bool UpdateGroup::has_parts() const { return false; }
void UpdateGroup::sum_over_parts(std::span<SquareSums>) {}
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

}  // namespace shoal::nn
