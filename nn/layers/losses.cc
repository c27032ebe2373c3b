#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// Forward computed everything; backward returns dx and ends the parameters' use.
class ComputedLoss final : public Function {
 public:
  ComputedLoss(Tape& tape, std::string_view name, const Tensor& dx,
               std::vector<Parameter*> parameters)
      : name_(name), dx_(tape, dx), parameters_(std::move(parameters)) {}
  std::string_view name() const override { return name_; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    if (backward_context.context().kernels().device().is_cpu()) {
      const float seed = *output_gradients[0].const_data<float>();
      SHOAL_CHECK(seed == 1,
                  "{}: backward started with {}; it accepts 1, because the gradient was computed "
                  "in forward: scale with loss_scale",
                  name_, seed);
    }
    backward_context.weight_gradient(parameters_, [] {});
    if (!dx_.defined()) return {Tensor()};
    Tensor dx = dx_.get(name());
    dx_.reset();
    return {std::move(dx)};
  }

 private:
  std::string_view name_;  // must have static storage
  SavedTensor dx_;
  std::vector<Parameter*> parameters_;
};

// Scales the loss, and records it if `dx` is defined.
Value scaled_loss(Context& context, const Value& x, std::string_view name, const Tensor& loss_sum,
                  const Tensor& dx, const LossOptions& options) {
  const Tensor loss = context.empty({1}, DType::f32);
  context.run("scale_loss", {loss_sum}, {loss}, [&] {
    context.kernels().elementwise().scale(loss_sum, options.loss_scale, loss.view(),
                                          context.stream);
  });
  if (!dx.defined()) return Value{loss};
  Tape& tape = *context.tape;
  return tape.record(computed_loss(tape, name, dx), {&x, 1}, {}, {loss})[0];
}

}  // namespace

std::unique_ptr<Function> computed_loss(Tape& tape, std::string_view name, const Tensor& dx,
                                        std::vector<Parameter*> parameters) {
  return std::make_unique<ComputedLoss>(tape, name, dx, std::move(parameters));
}

LossResult cross_entropy(Context& context, const Value& logits, const Tensor& given,
                         const LossOptions& options) {
  LossResult result;
  result.targets = given.device().is_cpu() ? 0 : -1;
  if (given.device().is_cpu() && given.dtype() == DType::i32 && given.count() > 0)
    for (std::int64_t i = 0; i < given.count(); ++i)
      result.targets += given.const_data<std::int32_t>()[i] >= 0;
  const Tensor targets = context.to_device(given);
  result.loss_sum = context.empty({1}, DType::f32);
  Tensor dlogits;
  if (context.records({&logits, 1}, {}))
    dlogits = context.empty(logits.tensor.shape(), logits.tensor.dtype());
  context.run("cross_entropy", {logits.tensor, targets}, {result.loss_sum, dlogits}, [&] {
    kernels::CrossEntropyArgs args;
    args.logits = logits.tensor;
    args.targets = targets;
    args.label_smoothing = options.label_smoothing;
    args.loss_scale = options.loss_scale;
    args.state = options.state;
    args.loss_sum = result.loss_sum.view();
    if (dlogits.defined()) args.dlogits = dlogits.view();
    context.kernels().loss().cross_entropy(args, context.stream);
  });
  result.loss = scaled_loss(context, logits, "cross_entropy", result.loss_sum, dlogits, options);
  return result;
}

LossResult squared_error(Context& context, const Value& x, const Tensor& given,
                         const LossOptions& options) {
  SHOAL_CHECK(given.defined() && given.dtype() == DType::f32 && given.count() == x.tensor.count(),
              "squared_error: targets must be f32, one for each of {}",
              to_string(x.tensor.shape()));
  LossResult result;
  result.targets = given.device().is_cpu() ? 0 : -1;
  if (given.device().is_cpu())
    for (std::int64_t i = 0; i < given.count(); ++i)
      result.targets += std::isnan(given.const_data<float>()[i]) ? 0 : 1;
  const Tensor targets = context.to_device(given);
  result.loss_sum = context.empty({1}, DType::f32);
  Tensor dx;
  if (context.records({&x, 1}, {})) dx = context.empty(x.tensor.shape(), x.tensor.dtype());
  context.run("squared_error", {x.tensor, targets}, {result.loss_sum, dx}, [&] {
    kernels::SquaredErrorArgs args;
    args.x = x.tensor;
    args.targets = targets;
    args.loss_scale = options.loss_scale;
    args.state = options.state;
    args.loss_sum = result.loss_sum.view();
    if (dx.defined()) args.dx = dx.view();
    context.kernels().loss().squared_error(args, context.stream);
  });
  result.loss = scaled_loss(context, x, "squared_error", result.loss_sum, dx, options);
  return result;
}

LossResult pointwise_loss(Context& context, std::string_view name, const Value& x,
                          const Tensor& targets, const LossOptions& options,
                          const std::function<float(float x, float target, float& slope)>& term) {
  if (!context.kernels().device().is_cpu())
    throw Error(ErrorCode::unavailable,
                fmt::format("{} is computed by the host, and the model is on {}", name,
                            to_string(context.kernels().device())),
                "use squared_error() or cross_entropy(), or train on the CPU");
  SHOAL_CHECK(x.tensor.dtype() == DType::f32 && targets.defined() &&
                  targets.dtype() == DType::f32 && targets.count() == x.tensor.count(),
              "{}: values and targets must be f32, one target for each of {}", name,
              to_string(x.tensor.shape()));
  LossResult result;
  result.loss_sum = context.empty({1}, DType::f32);
  Tensor dx;
  if (context.records({&x, 1}, {})) dx = context.empty(x.tensor.shape(), DType::f32);
  context.run(name, {x.tensor, targets}, {result.loss_sum, dx}, [&] {
    float factor = options.loss_scale;
    if (options.state != nullptr)
      factor *= options.state->loss_scale * options.state->inverse_targets;
    const auto* const values = x.tensor.const_data<float>();
    const auto* const wanted = targets.const_data<float>();
    auto* const slopes = dx.defined() ? dx.data<float>() : nullptr;
    double sum = 0;
    for (std::int64_t i = 0; i < targets.count(); ++i) {
      float slope = 0;
      if (!std::isnan(wanted[i])) sum += term(values[i], wanted[i], slope);
      if (slopes != nullptr) slopes[i] = factor * slope;
    }
    *result.loss_sum.data<float>() = static_cast<float>(sum);
  });
  const auto* const wanted = targets.const_data<float>();
  result.targets = std::count_if(wanted, wanted + targets.count(),
                                 [](float target) { return !std::isnan(target); });
  result.loss = scaled_loss(context, x, name, result.loss_sum, dx, options);
  return result;
}

}  // namespace shoal::nn
