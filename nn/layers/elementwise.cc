#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/functional_internal.h"

namespace shoal::nn {
namespace {

Tensor product(Context& context, std::string_view name, const Tensor& a, const Tensor& b) {
  const Tensor y = context.empty(a.shape(), a.dtype());
  context.run(name, {a, b}, {y},
              [&] { context.kernels().elementwise().multiply(a, b, y.view(), context.stream); });
  return y;
}

Tensor multiple(Context& context, std::string_view name, const Tensor& x, float factor) {
  const Tensor y = context.empty(x.shape(), x.dtype());
  context.run(name, {x}, {y},
              [&] { context.kernels().elementwise().scale(x, factor, y.view(), context.stream); });
  return y;
}

class MultiplyFunction final : public Function {
 public:
  MultiplyFunction(Tape& tape, const Tensor& a, const Tensor& b) : a_(tape, a), b_(tape, b) {}
  std::string_view name() const override { return "multiply"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    const Tensor& dy = output_gradients[0];
    return {product(context, "multiply.backward", dy, b_.get(name())),
            product(context, "multiply.backward", dy, a_.get(name()))};
  }

 private:
  SavedTensor a_, b_;
};

class ScaledFunction final : public Function {
 public:
  explicit ScaledFunction(float factor) : factor_(factor) {}
  std::string_view name() const override { return "scaled"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    return {multiple(backward_context.context(), "scaled.backward", output_gradients[0], factor_)};
  }

 private:
  float factor_;
};

class ActivateFunction final : public Function {
 public:
  ActivateFunction(Tape& tape, const Tensor& x, kernels::Activation activation)
      : x_(tape, x), activation_(activation) {}
  std::string_view name() const override { return "activation"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Tensor dy = std::move(output_gradients[0]);
    if (gave_gate_) return {dy};
    return {activation_gradient(backward_context.context(), activation_, x_.get(name()),
                                std::move(dy))};
  }
  std::optional<ActivationGate> give_gate() override {
    gave_gate_ = true;
    const Tensor x = x_.get(name());
    x_.reset();
    return ActivationGate{activation_, x};
  }

 private:
  SavedTensor x_;
  kernels::Activation activation_;
  bool gave_gate_ = false;
};

}  // namespace

Tensor activation_gradient(Context& context, kernels::Activation activation, const Tensor& x,
                           Tensor dy) {
  const Tensor dx = may_overwrite(dy) ? dy : context.empty(dy.shape(), dy.dtype());
  context.run("activation.backward", {x, dy}, {dx}, [&] {
    context.kernels().elementwise().activation_backward(activation, x, dy, dx.view(),
                                                        context.stream);
  });
  return dx;
}

Value activate(Context& context, const Value& x, kernels::Activation activation) {
  if (activation == kernels::Activation::none) return x;
  const bool records = context.records({&x, 1}, {});
  const Tensor y = context.empty(x.tensor.shape(), x.tensor.dtype());
  context.run("activation", {x.tensor}, {y}, [&] {
    context.kernels().elementwise().activation(activation, x.tensor, y.view(), context.stream);
  });
  if (!records) return Value{y};
  Tape& tape = *context.tape;
  return tape.record(std::make_unique<ActivateFunction>(tape, x.tensor, activation), {&x, 1}, {},
                     {y})[0];
}

Value multiply(Context& context, const Value& a, const Value& b) {
  const Value inputs[] = {a, b};
  const bool records = context.records(inputs, {});
  const Tensor y = product(context, "multiply", a.tensor, b.tensor);
  if (!records) return Value{y};
  Tape& tape = *context.tape;
  return tape.record(std::make_unique<MultiplyFunction>(tape, a.tensor, b.tensor), inputs, {},
                     {y})[0];
}

Value scaled(Context& context, const Value& x, float factor) {
  const bool records = context.records({&x, 1}, {});
  const Tensor y = multiple(context, "scaled", x.tensor, factor);
  if (!records) return Value{y};
  return context.tape->record(std::make_unique<ScaledFunction>(factor), {&x, 1}, {}, {y})[0];
}

Value soft_capped(Context& context, const Value& x, float cap) {
  if (cap == 0) return x;
  return scaled(context, activate(context, scaled(context, x, 1 / cap), kernels::Activation::tanh),
                cap);
}

}  // namespace shoal::nn
