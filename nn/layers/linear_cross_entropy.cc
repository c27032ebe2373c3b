#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// Number of valid targets; -1 if they are on a device.
std::int64_t count_targets(const Tensor& targets, std::int64_t vocabulary) {
  if (!targets.device().is_cpu()) return -1;
  std::int64_t valid = 0;
  if (targets.count() == 0) return 0;
  const std::int32_t* data = targets.const_data<std::int32_t>();
  for (std::int64_t i = 0; i < targets.count(); ++i) {
    // Check on the host, since device kernels can only report errors later.
    SHOAL_CHECK(data[i] < vocabulary,
                "cross entropy: target {} of row {} is outside the vocabulary of {}", data[i], i,
                vocabulary);
    valid += data[i] >= 0;
  }
  return valid;
}

// The kernel overwrites both gradients or adds to both. If only one already holds a sum, the other
// is zeroed first.
void begin_gradients(Context& context, Parameter& weight, Parameter* bias, Tensor& dweight,
                     Tensor& dbias, kernels::LinearCrossEntropyArgs& args) {
  bool weight_sum = false, bias_sum = false;
  if (weight.trainable()) {
    weight_sum = weight.accumulate();
    dweight = weight.gradient;
    args.dweight = dweight.view();
  }
  if (bias && bias->trainable()) {
    bias_sum = bias->accumulate();
    dbias = bias->gradient;
    args.dbias = dbias.view();
  }
  args.accumulate_dweight = weight_sum || bias_sum;
  const auto zero = [&](const Tensor& tensor) {
    context.run("zero", {}, {tensor},
                [&] { context.kernels().elementwise().fill(tensor.view(), 0, context.stream); });
  };
  if (args.accumulate_dweight && !weight_sum && dweight.defined()) zero(dweight);
  if (args.accumulate_dweight && !bias_sum && dbias.defined()) zero(dbias);
}

}  // namespace

LossResult linear_cross_entropy(Context& context, const Value& hidden, Parameter& weight,
                                const Tensor& given, const LossOptions& options, Parameter* bias,
                                float soft_cap) {
  SHOAL_CHECK(given.dtype() == DType::i32 && given.count() == hidden.tensor.shape().rows(),
              "{}: targets {} {} for hidden states {}", weight.name(), to_string(given.dtype()),
              to_string(given.shape()), to_string(hidden.tensor.shape()));
  Parameter* const parameters[] = {&weight, bias};
  const bool records = context.records({&hidden, 1}, parameters);
  LossResult result;
  result.targets = count_targets(given, weight.shape()[0]);
  const Tensor targets = context.to_device(given);
  result.loss_sum = context.empty({1}, DType::f32);
  const Tensor loss = context.empty({1}, DType::f32);
  Tensor dx, dweight, dbias;
  kernels::LinearCrossEntropyArgs args;
  args.x = hidden.tensor;
  args.weight = weight.value;
  if (bias) args.bias = bias->value;
  args.targets = targets;
  args.soft_cap = soft_cap;
  args.label_smoothing = options.label_smoothing;
  args.loss_scale = options.loss_scale;
  args.state = options.state;
  args.loss_sum = result.loss_sum.view();
  if (records && hidden.needs_gradient()) {
    dx = context.empty(hidden.tensor.shape(), hidden.tensor.dtype());
    args.dx = dx.view();
  }
  if (records) begin_gradients(context, weight, bias, dweight, dbias, args);
  context.run("linear_cross_entropy",
              {hidden.tensor, weight.value, bias ? bias->value : Tensor(), targets},
              {result.loss_sum, dx, dweight, dbias},
              [&] { context.kernels().loss().linear_cross_entropy(args, context.stream); });
  context.run("scale_loss", {result.loss_sum}, {loss}, [&] {
    context.kernels().elementwise().scale(result.loss_sum, options.loss_scale, loss.view(),
                                          context.stream);
  });
  if (!records) {
    result.loss = Value{loss};
    return result;
  }
  Tape& tape = *context.tape;
  result.loss = tape.record(computed_loss(tape, "linear_cross_entropy", dx, {&weight, bias}),
                            {&hidden, 1}, parameters, {loss})[0];
  return result;
}

}  // namespace shoal::nn
