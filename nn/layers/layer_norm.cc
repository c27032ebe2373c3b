#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/dropout_args.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// An empty view if the tensor is undefined.
ConstView view_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.const_view() : ConstView();
}

// A norm's weights, and its options.
struct Norm {
  Parameter& gamma;
  Parameter* beta;  // null: RMSNorm
  float epsilon;
  float offset = 0;  // added to gamma
};

// Destinations of a norm's weight gradients in backward.
struct NormWeights {
  Context& context;
  Parameter& gamma;
  Parameter* beta;  // null: RMSNorm

  // The kernel computes both gradients with one accumulate flag. A frozen parameter's gradient goes
  // to scratch. If only one gradient already holds a sum, the other is zeroed first.
  void give(kernels::LayerNormBackwardArgs& args, Tensor& dgamma, Tensor& dbeta) const {
    dgamma = target(gamma);
    if (beta) dbeta = target(*beta);
    const bool gamma_sum = gamma.trainable() && gamma.accumulate();
    const bool beta_sum = beta && beta->trainable() && beta->accumulate();
    args.accumulate = gamma_sum || beta_sum;
    if (args.accumulate && !gamma_sum) zero(dgamma);
    if (args.accumulate && !beta_sum && beta) zero(dbeta);
    args.dgamma = dgamma.view();
    if (beta) args.dbeta = dbeta.view();
  }

 private:
  void zero(const Tensor& tensor) const {
    context.run("zero", {}, {tensor},
                [&] { context.kernels().elementwise().fill(tensor.view(), 0, context.stream); });
  }
  Tensor target(const Parameter& parameter) const {
    return parameter.trainable() && parameter.gradient.defined()
               ? parameter.gradient
               : context.empty(parameter.shape(), DType::f32, MemoryTag::workspace);
  }
};

// Function of all forms of LayerNorm and RMSNorm (no beta or mean): y = norm(x); fork: (x, y);
// fused: (sum, y) with sum = residual + dropout(branch).
class LayerNormFunction final : public Function {
 public:
  LayerNormFunction(Tape& tape, const Norm& norm, const Tensor& x, const Tensor& mean,
                    const Tensor& rstd)
      : norm_(norm), x_(tape, x), mean_(tape, mean), rstd_(tape, rstd) {}

  void fork() { two_outputs_ = true; }
  void fuse(const kernels::DropoutArgs& args, bool needs_branch) {
    two_outputs_ = fused_ = true;
    dropout_ = args;
    needs_branch_ = needs_branch;
  }
  std::string_view name() const override { return fused_ ? "residual_layer_norm" : "layer_norm"; }

  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    Tensor dsum = two_outputs_ ? std::move(output_gradients[0]) : Tensor();
    Tensor dy = std::move(output_gradients[two_outputs_ ? 1 : 0]);
    const Shape whole = dy.defined() ? dy.shape() : Shape();
    const bool drops = fused_ && needs_branch_ && dropout_.probability > 0;
    Tensor dx = dsum, dbranch;
    if (dy.defined()) {
      const Tensor x = x_.get(name()), rstd = rstd_.get(name());
      if (dy.shape() != x.shape()) dy = dy.reshaped(x.shape());  // heads
      const Tensor mean = mean_.defined() ? mean_.get(name()) : Tensor();
      dx = context.empty(dy.shape(), dy.dtype());
      kernels::LayerNormBackwardArgs args;
      args.dy = dy;
      args.x = x;
      args.gamma = norm_.gamma.value;
      args.gamma_offset = norm_.offset;
      args.mean = view_of(mean);
      args.rstd = rstd;
      args.dx = dx.view();
      if (dsum.defined()) args.dx_residual = dsum;
      if (drops) {
        dbranch = context.empty(dy.shape(), dy.dtype());
        args.dx_branch = dbranch.view();
        args.dropout = dropout_;
      }
      Tensor dgamma, dbeta;
      const auto run = [&] {
        context.run("layer_norm.backward", {dy, x, norm_.gamma.value, mean, rstd, dsum},
                    {dx, dbranch, dgamma, dbeta},
                    [&] { context.kernels().norm().layer_norm_backward(args, context.stream); });
      };
      // The weight gradients are not deferred, because one kernel computes them together with dx
      // and reads x and dy only once.
      Parameter* const parameters[] = {&norm_.gamma, norm_.beta};
      bool ran = false;
      backward_context.weight_gradient_at_once(parameters, [&] {
        NormWeights{context, norm_.gamma, norm_.beta}.give(args, dgamma, dbeta);
        run();
        ran = true;
      });
      if (!ran) run();  // frozen weights
    }
    if (!two_outputs_) return {dx.defined() ? dx.reshaped(whole) : dx};
    if (!fused_) return {dx};
    if (!drops) return {dx, dx};
    if (!dbranch.defined()) {  // the normalised output had no reader
      dbranch = context.empty(dx.shape(), dx.dtype());
      context.run("dropout.backward", {dx}, {dbranch}, [&] {
        context.kernels().elementwise().dropout(dropout_, dx, dbranch.view(), context.stream);
      });
    }
    return {dx, dbranch};
  }

 private:
  Norm norm_;
  SavedTensor x_, mean_, rstd_;
  bool two_outputs_ = false, fused_ = false, needs_branch_ = false;
  kernels::DropoutArgs dropout_;
};

struct Outputs {
  Tensor y, mean, rstd;
};

Outputs start(Context& context, const Tensor& x, const Norm& norm, bool records,
              kernels::LayerNormArgs& args) {
  const auto& [gamma, beta, epsilon, offset] = norm;
  SHOAL_CHECK(x.shape().rank() >= 1 && x.shape()[-1] == gamma.shape().count(),
              "{}: an input {} for a norm of {} channels", gamma.name(), to_string(x.shape()),
              gamma.shape().count());
  Outputs out;
  out.y = context.empty(x.shape(), x.dtype());
  args.x = x;
  args.gamma = gamma.value;
  args.gamma_offset = offset;
  if (beta) args.beta = beta->value;
  args.epsilon = epsilon;
  args.y = out.y.view();
  if (records) {
    if (beta) out.mean = context.empty({x.shape().rows()}, DType::f32);
    out.rstd = context.empty({x.shape().rows()}, DType::f32);
    if (beta) args.mean = out.mean.view();
    args.rstd = out.rstd.view();
  }
  return out;
}

// For Context::run(): undefined if there is no parameter.
Tensor value_of(const Parameter* parameter) { return parameter ? parameter->value : Tensor(); }

// x [.., n·C] as rows of C channels, if n > 1.
Tensor by_heads(const Tensor& x, std::int64_t channels) {
  const std::int64_t width = x.shape().rank() > 0 ? x.shape()[-1] : 0;
  if (channels == 0 || width == channels || width % channels != 0) return x;
  return x.reshaped({x.count() / channels, channels});
}

Value normalise(Context& context, const Value& x, const Norm& norm) {
  const auto& [gamma, beta, epsilon, offset] = norm;
  Parameter* const parameters[] = {&gamma, beta};
  const bool records = context.records({&x, 1}, parameters);
  kernels::LayerNormArgs args;
  const Tensor rows = by_heads(x.tensor, gamma.shape().count());
  const Outputs out = start(context, rows, norm, records, args);
  context.run("layer_norm", {rows, gamma.value, value_of(beta)}, {out.y, out.mean, out.rstd},
              [&] { context.kernels().norm().layer_norm(args, context.stream); });
  const Tensor y = out.y.reshaped(x.tensor.shape());
  if (!records) return Value{y};
  Tape& tape = *context.tape;
  return tape.record(std::make_unique<LayerNormFunction>(tape, norm, rows, out.mean, out.rstd),
                     {&x, 1}, parameters, {y})[0];
}

ResidualNorm fork_norm(Context& context, const Value& x, const Norm& norm) {
  const auto& [gamma, beta, epsilon, offset] = norm;
  Parameter* const parameters[] = {&gamma, beta};
  if (!context.records({&x, 1}, parameters)) return {x, normalise(context, x, norm)};
  kernels::LayerNormArgs args;
  const Outputs out = start(context, x.tensor, norm, true, args);
  context.run("layer_norm", {x.tensor, gamma.value, value_of(beta)}, {out.y, out.mean, out.rstd},
              [&] { context.kernels().norm().layer_norm(args, context.stream); });
  Tape& tape = *context.tape;
  auto function = std::make_unique<LayerNormFunction>(tape, norm, x.tensor, out.mean, out.rstd);
  function->fork();
  auto values = tape.record(std::move(function), {&x, 1}, parameters, {x.tensor, out.y});
  return {std::move(values[0]), std::move(values[1])};
}

ResidualNorm residual_norm(Context& context, const Value& residual, const Value& branch,
                           const DropoutSite& site, const Norm& norm) {
  const auto& [gamma, beta, epsilon, offset] = norm;
  SHOAL_CHECK(branch.tensor.shape() == residual.tensor.shape(), "{}: a residual {} and a branch {}",
              gamma.name(), to_string(residual.tensor.shape()), to_string(branch.tensor.shape()));
  const Value inputs[] = {residual, branch};
  Parameter* const parameters[] = {&gamma, beta};
  const bool records = context.records(inputs, parameters);
  kernels::LayerNormArgs args;
  const Outputs out = start(context, branch.tensor, norm, records, args);
  const Tensor sum = context.empty(branch.tensor.shape(), branch.tensor.dtype());
  args.residual = residual.tensor;
  args.sum = sum.view();
  args.dropout = dropout_args(context, site, branch.tensor.shape());
  context.run("residual_layer_norm", {residual.tensor, branch.tensor, gamma.value, value_of(beta)},
              {sum, out.y, out.mean, out.rstd},
              [&] { context.kernels().norm().layer_norm(args, context.stream); });
  if (!records) return {Value{sum}, Value{out.y}};
  Tape& tape = *context.tape;
  auto function = std::make_unique<LayerNormFunction>(tape, norm, sum, out.mean, out.rstd);
  function->fuse(args.dropout, branch.needs_gradient());
  auto values = tape.record(std::move(function), inputs, parameters, {sum, out.y});
  return {std::move(values[0]), std::move(values[1])};
}

}  // namespace

Value layer_norm(Context& context, const Value& x, Parameter& gamma, Parameter& beta,
                 float epsilon) {
  return normalise(context, x, {gamma, &beta, epsilon});
}
Value rms_norm(Context& context, const Value& x, Parameter& gamma, float epsilon, float offset) {
  return normalise(context, x, {gamma, nullptr, epsilon, offset});
}

ResidualNorm fork_layer_norm(Context& context, const Value& x, Parameter& gamma, Parameter& beta,
                             float epsilon) {
  return fork_norm(context, x, {gamma, &beta, epsilon});
}
ResidualNorm fork_rms_norm(Context& context, const Value& x, Parameter& gamma, float epsilon,
                           float offset) {
  return fork_norm(context, x, {gamma, nullptr, epsilon, offset});
}

ResidualNorm residual_layer_norm(Context& context, const Value& residual, const Value& branch,
                                 const DropoutSite& site, Parameter& gamma, Parameter& beta,
                                 float epsilon) {
  return residual_norm(context, residual, branch, site, {gamma, &beta, epsilon});
}
ResidualNorm residual_rms_norm(Context& context, const Value& residual, const Value& branch,
                               const DropoutSite& site, Parameter& gamma, float epsilon,
                               float offset) {
  return residual_norm(context, residual, branch, site, {gamma, nullptr, epsilon, offset});
}

}  // namespace shoal::nn
