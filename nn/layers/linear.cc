#include "shoal/kernels/kernels.h"
#include "shoal/kernels/matmul.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

using kernels::Activation;

// Computes dW and db, in one product if both are wanted. Owns its inputs, so that it can run later.
struct LinearWeightWork {
  Context& context;
  Parameter& weight;
  Parameter* bias;
  bool transposed;
  Tensor x, dy;

  void operator()() const {
    auto& matmul = context.kernels().matmul();
    const bool wants_bias = bias && bias->trainable();
    if (weight.trainable() && x.defined()) {
      kernels::MatmulArgs args;
      args.accumulate = weight.accumulate();
      args.a = transposed ? dy.const_view() : x.const_view();
      args.b = flat(transposed ? x : dy);
      args.transpose_a = true;
      args.c = weight.gradient.view();
      if (wants_bias) {
        args.accumulate_bias_gradient = bias->accumulate();
        args.bias_gradient = bias->gradient.view();
        args.bias_gradient_of_a = transposed;
      }
      context.run("linear.backward_weight", {x, dy},
                  {weight.gradient, wants_bias ? bias->gradient : Tensor()},
                  [&] { matmul.matmul(args, context.stream); });
    } else if (wants_bias) {
      const bool accumulate = bias->accumulate();
      context.run("linear.backward_bias", {dy}, {bias->gradient},
                  [&] { matmul.sum_rows(dy, bias->gradient.view(), accumulate, context.stream); });
    }
  }

  static ConstView flat(const Tensor& tensor) {
    return tensor.reshaped({tensor.shape().rows(), tensor.shape().columns()});
  }
};

// y = activation(x·W + b), or y = sum + x·W, whose second input is the sum.
class LinearFunction final : public Function {
 public:
  LinearFunction(Tape& tape, const Value& x, Parameter& weight, Parameter* bias,
                 const LinearOptions& options, const Tensor& pre_activation, bool adds = false)
      : weight_(weight),
        bias_(bias),
        options_(options),
        x_shape_(x.tensor.shape()),
        x_(tape, weight.trainable() ? x.tensor : Tensor()),
        pre_activation_(tape, pre_activation),
        needs_dx_(x.needs_gradient()),
        adds_(adds) {}

  std::string_view name() const override { return "linear"; }

  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    Tensor dy = std::move(output_gradients[0]);
    if (options_.activation != Activation::none && !gave_gate_) {
      dy = activation_gradient(context, options_.activation, pre_activation_.get(name()),
                               std::move(dy));
    }
    pre_activation_.reset();
    {
      Parameter* const parameters[] = {&weight_, bias_};
      Tensor x;  // a frozen weight needs no x
      if (x_.defined()) x = x_.get(name());
      x_.reset();
      backward_context.weight_gradient(
          parameters,
          LinearWeightWork{context, weight_, bias_, options_.transposed, std::move(x), dy});
    }
    if (!needs_dx_) return adds_ ? std::vector<Tensor>{{}, dy} : std::vector<Tensor>(1);
    // If other products also read the input, this product's kernel adds its result to their
    // gradient.
    const Tensor sum = backward_context.take_sum(0);
    const Tensor dx = sum.defined() ? sum : context.empty(x_shape_, dy.dtype());
    ActivationGate gate;
    if (!sum.defined()) gate = backward_context.take_gate(0).value_or(ActivationGate{});
    kernels::MatmulArgs args;
    args.a = dy;
    args.b = weight_.value;
    args.transpose_b = !options_.transposed;
    args.accumulate = sum.defined();
    args.activation = gate.activation;
    if (gate.input.defined()) args.activation_input = gate.input;
    args.c = dx.view();
    context.run("linear.backward_input", {dy, weight_.value, gate.input, sum}, {dx},
                [&] { context.kernels().matmul().matmul(args, context.stream); });
    return adds_ ? std::vector<Tensor>{dx, dy} : std::vector<Tensor>{dx};
  }

  std::optional<ActivationGate> give_gate() override {
    if (options_.activation == Activation::none) return {};
    gave_gate_ = true;
    const Tensor before = pre_activation_.get(name());
    pre_activation_.reset();
    return ActivationGate{options_.activation, before};
  }

 private:
  Parameter& weight_;
  Parameter* bias_;
  LinearOptions options_;
  Shape x_shape_;
  SavedTensor x_, pre_activation_;
  bool needs_dx_, adds_;
  bool gave_gate_ = false;
};

void check_input(const Value& x, const Parameter& weight, std::int64_t in) {
  SHOAL_CHECK(x.tensor.shape().rank() >= 1 && x.tensor.shape()[-1] == in,
              "{}: an input {} for a layer of {} inputs", weight.name(),
              to_string(x.tensor.shape()), in);
}

}  // namespace

Value linear(Context& context, const Value& x, Parameter& weight, Parameter* bias,
             const LinearOptions& options) {
  const Shape& shape = weight.shape();
  const std::int64_t in = shape[options.transposed ? 1 : 0],
                     out = shape[options.transposed ? 0 : 1];
  check_input(x, weight, in);
  Parameter* const parameters[] = {&weight, bias};
  const bool records = context.records({&x, 1}, parameters);
  const Tensor y = context.empty(x.tensor.shape().with(-1, out), x.tensor.dtype());
  Tensor before;
  kernels::MatmulArgs args;
  // A checkpoint's first run records nothing and sets noted_uses. That run also stores `before`, as
  // its recomputation does: without `before` the activation is fused and the product rounds
  // differently.
  if ((records || context.noted_uses) && options.activation != Activation::none) {
    before = context.empty(y.shape(), y.dtype());
    args.pre_activation = before.view();
  }
  args.a = x.tensor;
  args.b = weight.value;
  args.transpose_b = options.transposed;
  if (bias) args.bias = bias->value;
  args.activation = options.activation;
  args.c = y.view();
  context.run("linear", {x.tensor, weight.value, bias ? bias->value : Tensor()}, {y, before},
              [&] { context.kernels().matmul().matmul(args, context.stream); });
  if (!records) return Value{y};
  Tape& tape = *context.tape;
  return tape.record(std::make_unique<LinearFunction>(tape, x, weight, bias, options, before),
                     {&x, 1}, parameters, {y})[0];
}

Value add_linear(Context& context, Value sum, const Value& x, Parameter& weight) {
  check_input(x, weight, weight.shape()[1]);
  Parameter* const parameters[] = {&weight};
  const Value inputs[] = {x, {{}, sum.tape, sum.node, sum.slot}};
  const bool records = context.records(inputs, parameters);
  const Tensor before = std::move(sum.tensor);
  SHOAL_CHECK(before.shape() == x.tensor.shape().with(-1, weight.shape()[0]),
              "{}: a sum of {} and a product of {} with {}", weight.name(),
              to_string(before.shape()), to_string(x.tensor.shape()), to_string(weight.shape()));
  const bool in_place = may_overwrite(before);
  const Tensor y = in_place ? before : context.empty(before.shape(), before.dtype());
  context.run("add_linear", {before, x.tensor, weight.value}, {y}, [&] {
    if (!in_place) context.kernels().elementwise().cast(before, y.view(), context.stream);
    kernels::MatmulArgs args;
    args.a = x.tensor;
    args.b = weight.value;
    args.transpose_b = true;
    args.accumulate = true;
    args.c = y.view();
    context.kernels().matmul().matmul(args, context.stream);
  });
  if (!records) return Value{y};
  Tape& tape = *context.tape;
  return tape.record(
      std::make_unique<LinearFunction>(tape, x, weight, nullptr, LinearOptions{.transposed = true},
                                       Tensor(), true),
      inputs, parameters, {y})[0];
}

}  // namespace shoal::nn
