#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/dropout_args.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

Tensor run_dropout(Context& context, std::string_view name, const kernels::DropoutArgs& args,
                   const Tensor& x) {
  const Tensor y = context.empty(x.shape(), x.dtype());
  context.run(name, {x}, {y},
              [&] { context.kernels().elementwise().dropout(args, x, y.view(), context.stream); });
  return y;
}

// Backward recomputes the mask from its coordinates, so nothing is saved.
class DropoutFunction final : public Function {
 public:
  explicit DropoutFunction(const kernels::DropoutArgs& args) : args_(args) {}
  std::string_view name() const override { return "dropout"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    return {
        run_dropout(backward_context.context(), "dropout.backward", args_, output_gradients[0])};
  }

 private:
  kernels::DropoutArgs args_;
};

// residual + dropout(branch); with probability 0 a plain sum.
class DropoutAddFunction final : public Function {
 public:
  DropoutAddFunction(const kernels::DropoutArgs& args, bool needs_branch)
      : args_(args), needs_branch_(needs_branch) {}
  std::string_view name() const override { return "dropout_add"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    const Tensor& dy = output_gradients[0];
    if (!needs_branch_ || args_.probability == 0) return {dy, dy};
    return {run_dropout(backward_context.context(), "dropout.backward", args_, dy), dy};
  }

 private:
  kernels::DropoutArgs args_;
  bool needs_branch_;
};

}  // namespace

Value dropout(Context& context, const Value& x, const DropoutSite& site) {
  if (!drops(context, site)) return x;
  const bool records = context.records({&x, 1}, {});
  const kernels::DropoutArgs args = dropout_args(context, site, x.tensor.shape());
  const Tensor y = run_dropout(context, "dropout", args, x.tensor);
  if (!records) return Value{y};
  return context.tape->record(std::make_unique<DropoutFunction>(args), {&x, 1}, {}, {y})[0];
}

Value dropout_add(Context& context, const Value& branch, const Value& residual,
                  const DropoutSite& site) {
  const Value inputs[] = {branch, residual};
  SHOAL_CHECK(branch.tensor.shape() == residual.tensor.shape(), "sum of {} and {}",
              to_string(branch.tensor.shape()), to_string(residual.tensor.shape()));
  const bool records = context.records(inputs, {});
  const kernels::DropoutArgs args = dropout_args(context, site, branch.tensor.shape());
  const Tensor y = context.empty(branch.tensor.shape(), branch.tensor.dtype());
  context.run("dropout_add", {branch.tensor, residual.tensor}, {y}, [&] {
    auto& elementwise = context.kernels().elementwise();
    if (args.probability > 0)
      elementwise.dropout_add(args, branch.tensor, residual.tensor, y.view(), context.stream);
    else
      elementwise.add(residual.tensor, branch.tensor, y.view(), context.stream);
  });
  if (!records) return Value{y};
  return context.tape->record(std::make_unique<DropoutAddFunction>(args, branch.needs_gradient()),
                              inputs, {}, {y})[0];
}

Value add(Context& context, const Value& a, const Value& b) {
  return dropout_add(context, a, b, DropoutSite{});
}

}  // namespace shoal::nn
