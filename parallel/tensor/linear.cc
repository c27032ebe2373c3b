#include "shoal/parallel/tensor/linear.h"

#include <utility>

#include "shoal/kernels/kernels.h"
#include "shoal/kernels/matmul.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/nn/layers/lora.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using kernels::Activation;
using nn::Context;
using nn::LinearConfig;
using nn::LinearOptions;
using nn::Parameter;
using nn::ParameterPiece;
using nn::Value;

ConstView flat(const Tensor& tensor) {
  return tensor.reshaped({tensor.shape().rows(), tensor.shape().columns()});
}

// Computes the weight's gradient. `x` and `dy` have the rows of all ranks of the group.
void weight_gradient(Context& context, Parameter& weight, bool transposed, const Tensor& x,
                     const Tensor& dy) {
  if (!weight.trainable()) return;
  kernels::MatmulArgs args;
  args.accumulate = weight.accumulate();
  args.a = transposed ? dy.const_view() : x.const_view();
  args.b = flat(transposed ? x : dy);
  args.transpose_a = true;
  args.c = weight.gradient.view();
  context.run("linear.backward_weight", {x, dy}, {weight.gradient},
              [&] { context.kernels().matmul().matmul(args, context.stream); });
}

// A separate pass, not part of the weight's product (MatmulArgs::bias_gradient). In a column layer
// it runs while x is gathered. In a row layer it sums only this rank's part of dy, but the weight's
// product reads the dy of the whole group.
void bias_gradient(Context& context, Parameter* bias, const Tensor& dy) {
  if (!bias || !bias->trainable()) return;
  const bool accumulate = bias->accumulate();
  context.run("linear.backward_bias", {dy}, {bias->gradient}, [&] {
    context.kernels().matmul().sum_rows(dy, bias->gradient.view(), accumulate, context.stream);
  });
}

// dx [.., in] = dy·Wᵀ, times the gate's derivative if there is a gate
void input_gradient(Context& context, const Parameter& weight, bool transposed, const Tensor& dy,
                    const Tensor& dx, const nn::ActivationGate& gate = {}) {
  kernels::MatmulArgs args;
  args.a = dy;
  args.b = weight.value;
  args.transpose_b = !transposed;
  args.activation = gate.activation;
  if (gate.input.defined()) args.activation_input = gate.input;
  args.c = dx.view();
  context.run("linear.backward_input", {dy, weight.value, gate.input}, {dx},
              [&] { context.kernels().matmul().matmul(args, context.stream); });
}

void check_input(const Value& x, const Parameter& weight, std::int64_t in) {
  SHOAL_CHECK(x.tensor.shape().rank() >= 1 && x.tensor.shape()[-1] == in,
              "{}: an input {} for a layer of {} inputs on this rank", weight.name(),
              to_string(x.tensor.shape()), in);
}

class ColumnLinearFunction final : public nn::Function {
 public:
  ColumnLinearFunction(nn::Tape& tape, const TensorParallel& group, const Value& x,
                       Parameter& weight, Parameter* bias, const LinearOptions& options,
                       const Tensor& before)
      : group_(group),
        weight_(weight),
        bias_(bias),
        options_(options),
        x_(tape, weight.trainable() ? x.tensor : Tensor()),
        before_(tape, before),
        needs_dx_(x.needs_gradient()) {}
  std::string_view name() const override { return "column_linear"; }

  std::vector<Tensor> backward(nn::BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    Tensor x;  // undefined if the weight is frozen
    if (x_.defined()) x = x_.get(name());
    x_.reset();
    // A deferred gradient gathers when it runs; until then only this rank's part is held.
    const auto gathered = x.defined() && !backward_context.deferred()
                              ? std::make_shared<Exchange>(begin_gather(context, group_, x))
                              : nullptr;
    const Tensor dy = through_activation(context, std::move(output_gradients[0]));
    Exchange dx;
    if (needs_dx_) {
      const std::int64_t in = weight_.shape()[options_.transposed ? 1 : 0];
      Tensor partial = exchange_memory(context, group_, dy.shape().with(-1, in), dy.dtype());
      input_gradient(context, weight_, options_.transposed, dy, partial);
      Exchange reducing = begin_reduce(context, group_, std::move(partial));
      queue_weight_gradient(backward_context, x, dy, gathered);
      return {reducing.wait(context)};
    }
    queue_weight_gradient(backward_context, x, dy, gathered);
    return {Tensor()};
  }

  std::optional<nn::ActivationGate> give_gate() override {
    if (options_.activation == Activation::none) return {};
    gave_gate_ = true;
    const Tensor before = before_.get(name());
    before_.reset();
    return nn::ActivationGate{options_.activation, before};
  }

 private:
  Tensor through_activation(Context& context, Tensor dy) {
    if (options_.activation == Activation::none || gave_gate_) return dy;
    const Tensor before = before_.get(name());
    before_.reset();
    return nn::activation_gradient(context, options_.activation, before, std::move(dy));
  }

  void queue_weight_gradient(nn::BackwardContext& backward_context, const Tensor& x,
                             const Tensor& dy, const std::shared_ptr<Exchange>& gathered) {
    Parameter* const parameters[] = {&weight_, bias_};
    backward_context.weight_gradient(
        parameters, [&context = backward_context.context(), group = group_, &weight = weight_,
                     bias = bias_, transposed = options_.transposed, x, dy, gathered] {
          bias_gradient(context, bias, dy);
          if (!x.defined()) return;
          const Tensor whole =
              gathered ? gathered->wait(context) : begin_gather(context, group, x).wait(context);
          weight_gradient(context, weight, transposed, whole, dy);
        });
  }

  TensorParallel group_;
  Parameter& weight_;
  Parameter* bias_;
  LinearOptions options_;
  nn::SavedTensor x_, before_;
  bool needs_dx_;
  bool gave_gate_ = false;
};

// Inputs: x and, with `up`, the inner product.
class RowLinearFunction final : public nn::Function {
 public:
  RowLinearFunction(nn::Tape& tape, const TensorParallel& group, const Value& x, Parameter& weight,
                    Parameter* bias, bool transposed, const Value& inner, Parameter* up)
      : group_(group),
        weight_(weight),
        bias_(bias),
        up_(up),
        transposed_(transposed),
        x_(tape, weight.trainable() ? x.tensor : Tensor()),
        inner_(tape, up && up->trainable() ? inner.tensor : Tensor()),
        needs_dx_(x.needs_gradient()),
        needs_dinner_(inner.needs_gradient()) {}
  std::string_view name() const override { return "row_linear"; }

  std::vector<Tensor> backward(nn::BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    const Tensor own = std::move(output_gradients[0]);
    Exchange gathering = begin_gather(context, group_, own);
    Parameter* const biases[] = {bias_};
    backward_context.weight_gradient(
        biases, [&context, bias = bias_, own] { bias_gradient(context, bias, own); });
    const Tensor dy = gathering.wait(context);
    std::vector<Tensor> gradients(up_ ? 2 : 1);
    if (needs_dx_) {
      gradients[0] = input_memory(context, weight_, transposed_, dy);
      const auto gate = backward_context.take_gate(0).value_or(nn::ActivationGate{});
      input_gradient(context, weight_, transposed_, dy, gradients[0], gate);
    }
    queue_weight_gradient(backward_context, weight_, transposed_, x_, dy);
    if (!up_) return gradients;
    if (needs_dinner_) {
      gradients[1] = input_memory(context, *up_, true, dy);
      input_gradient(context, *up_, true, dy, gradients[1]);
    }
    queue_weight_gradient(backward_context, *up_, true, inner_, dy);
    return gradients;
  }

 private:
  static Tensor input_memory(Context& context, const Parameter& weight, bool transposed,
                             const Tensor& dy) {
    return context.empty(dy.shape().with(-1, weight.shape()[transposed ? 1 : 0]), dy.dtype());
  }
  void queue_weight_gradient(nn::BackwardContext& backward_context, Parameter& weight,
                             bool transposed, nn::SavedTensor& saved, const Tensor& dy) {
    Tensor x;
    if (saved.defined()) x = saved.get(name());
    saved.reset();
    Parameter* const weights[] = {&weight};
    backward_context.weight_gradient(
        weights, [&context = backward_context.context(), &weight, transposed, x = std::move(x),
                  dy] { weight_gradient(context, weight, transposed, x, dy); });
  }

  TensorParallel group_;
  Parameter& weight_;
  Parameter *bias_, *up_;
  bool transposed_;
  nn::SavedTensor x_, inner_;
  bool needs_dx_, needs_dinner_;
};

nn::Initializer normal(float std) { return {nn::Initializer::Kind::normal, std}; }
nn::Initializer zeros() { return {nn::Initializer::Kind::zeros, 0}; }

// This rank's number of the outputs, which are `blocks` equal blocks, each split over the ranks.
std::int64_t own_part(const TensorParallel& group, const LinearConfig& config, int blocks) {
  SHOAL_CHECK(blocks > 0 && config.out % blocks == 0, "{} outputs are not {} equal blocks",
              config.out, blocks);
  return blocks * divided(config.out / blocks, group, "output channels", "");
}

// Sets the parts of a layer's parameters, whose outputs are split as above. `bias` may be null.
void set_parts(const TensorParallel& group, const LinearConfig& config, bool transposed, int blocks,
               Parameter& weight, Parameter* bias) {
  const std::int64_t block = config.out / blocks, own = own_part(group, config, blocks) / blocks;
  std::vector<ParameterPiece> pieces, bias_pieces;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t local = b * own, whole = b * block + group.rank() * own;
    if (transposed)
      pieces.push_back({{own, config.in}, {local, 0}, {whole, 0}});
    else
      pieces.push_back({{config.in, own}, {0, local}, {0, whole}});
    bias_pieces.push_back({{own}, {local}, {whole}});
  }
  weight.set_part(transposed ? Shape{config.out, config.in} : Shape{config.in, config.out},
                  std::move(pieces));
  if (bias) bias->set_part({config.out}, std::move(bias_pieces));
}

void inherit_adapters(const nn::Module& from, nn::Module& to) {
  const auto* const adapted = dynamic_cast<const nn::LinearLike*>(&from);
  if (adapted && adapted->lora()) {
    auto* const layer = dynamic_cast<nn::LinearLike*>(&to);
    SHOAL_CHECK(layer, "{}: a {} takes the place of an adapted {}", from.path(), to.kind(),
                from.kind());
    layer->adapt(adapted->lora()->config());
    return;
  }
  for (const nn::Module::Child& old : from.children())
    for (const nn::Module::Child& fresh : to.children())
      if (fresh.name == old.name) inherit_adapters(*old.module, *fresh.module);
}

// The configuration of a linear layer, and whether its weight is transposed; throws for another
// kind.
std::pair<LinearConfig, bool> as_linear(const nn::Module& module) {
  if (const auto* linear = dynamic_cast<const nn::Linear*>(&module))
    return {linear->config(), true};
  if (const auto* conv = dynamic_cast<const nn::Conv1D*>(&module)) return {conv->config(), false};
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: tensor parallelism cannot cut a {}", module.path(), module.kind()),
              "register a maker for the layer that holds it (TensorParallelRegistry::add)");
}

}  // namespace

Value column_linear(Context& context, const TensorParallel& group, const Value& x,
                    Parameter& weight, Parameter* bias, const LinearOptions& options) {
  const Shape& shape = weight.shape();
  check_input(x, weight, shape[options.transposed ? 1 : 0]);
  Parameter* const parameters[] = {&weight, bias};
  const bool records = context.records({&x, 1}, parameters);
  const Tensor whole = begin_gather(context, group, x.tensor).wait(context);
  const Tensor y =
      context.empty(whole.shape().with(-1, shape[options.transposed ? 0 : 1]), whole.dtype());
  Tensor before;
  kernels::MatmulArgs args;
  // As in nn's linear(): the first run under a checkpoint takes the same path as its recomputation.
  if ((records || context.noted_uses) && options.activation != Activation::none) {
    before = context.empty(y.shape(), y.dtype());
    args.pre_activation = before.view();
  }
  args.a = whole;
  args.b = weight.value;
  args.transpose_b = options.transposed;
  if (bias) args.bias = bias->value;
  args.activation = options.activation;
  args.c = y.view();
  context.run("linear", {whole, weight.value, bias ? bias->value : Tensor()}, {y, before},
              [&] { context.kernels().matmul().matmul(args, context.stream); });
  if (!records) return Value{y};
  nn::Tape& tape = *context.tape;
  return tape.record(
      std::make_unique<ColumnLinearFunction>(tape, group, x, weight, bias, options, before),
      {&x, 1}, parameters, {y})[0];
}

Value row_linear(Context& context, const TensorParallel& group, const Value& x, Parameter& weight,
                 Parameter* bias, bool transposed, const Value& inner, Parameter* up) {
  const Shape& shape = weight.shape();
  check_input(x, weight, shape[transposed ? 1 : 0]);
  if (up) check_input(inner, *up, up->shape()[1]);
  Parameter* const parameters[] = {&weight, bias, up};
  const Value inputs[] = {x, inner};
  const bool records = context.records(inputs, parameters);
  Tensor partial = exchange_memory(
      context, group, x.tensor.shape().with(-1, shape[transposed ? 0 : 1]), x.tensor.dtype());
  const auto multiply = [&](const Tensor& from, const Parameter& by, bool is_transposed,
                            bool adds) {
    kernels::MatmulArgs args;
    args.a = from;
    args.b = by.value;
    args.transpose_b = is_transposed;
    args.accumulate = adds;
    args.c = partial.view();
    context.run("linear", {from, by.value}, {partial},
                [&] { context.kernels().matmul().matmul(args, context.stream); });
  };
  multiply(x.tensor, weight, transposed, false);
  if (up) multiply(inner.tensor, *up, true, true);
  const Tensor y = begin_reduce(context, group, std::move(partial)).wait(context);
  if (bias)
    context.run("add_bias", {y, bias->value}, {y}, [&] {
      context.kernels().elementwise().add_bias(y, bias->value, y.view(), context.stream);
    });
  if (!records) return Value{y};
  nn::Tape& tape = *context.tape;
  return tape.record(
      std::make_unique<RowLinearFunction>(tape, group, x, weight, bias, transposed, inner, up),
      std::span(inputs).first(up ? 2 : 1), parameters, {y})[0];
}

ColumnParallelLinear::ColumnParallelLinear(const TensorParallel& group, const LinearConfig& config,
                                           bool transposed, int blocks)
    : group_(group), options_{transposed, config.activation} {
  const std::int64_t out = own_part(group, config, blocks);
  weight_ = add_parameter("weight", transposed ? Shape{out, config.in} : Shape{config.in, out},
                          normal(config.std));
  if (config.bias) bias_ = add_parameter("bias", {out}, zeros(), false);
  set_parts(group, config, transposed, blocks, *weight_, bias_.get());
}

Value ColumnParallelLinear::forward(Context& context, const Value& x) {
  if (!lora()) return column_linear(context, group_, x, *weight_, bias_.get(), options_);
  Value base = column_linear(context, group_, x, *weight_, bias_.get(), {options_.transposed});
  const Value inner = enter(context, group_, lora()->down(context, x));
  return activate(context, lora()->up(context, std::move(base), inner), options_.activation);
}

RowParallelLinear::RowParallelLinear(const TensorParallel& group, const LinearConfig& config,
                                     bool transposed)
    : group_(group), transposed_(transposed) {
  SHOAL_CHECK(config.activation == Activation::none,
              "a row-parallel layer has no activation: its sum is not there before leave()");
  const std::int64_t own = divided(config.in, group, "input channels", ""),
                     first = group.rank() * own;
  weight_ = add_parameter("weight", transposed ? Shape{config.out, own} : Shape{own, config.out},
                          normal(config.std));
  if (transposed)
    weight_->set_part({config.out, config.in}, {{{config.out, own}, {0, 0}, {0, first}}});
  else
    weight_->set_part({config.in, config.out}, {{{own, config.out}, {0, 0}, {first, 0}}});
  if (config.bias) bias_ = add_parameter("bias", {config.out}, zeros(), false);
}

Value RowParallelLinear::forward(Context& context, const Value& x) {
  if (!lora()) return row_linear(context, group_, x, *weight_, bias_.get(), transposed_);
  const std::int64_t own = weight_->shape()[transposed_ ? 1 : 0];
  Value inner;
  {
    const std::int64_t samples =
        x.tensor.shape()[0] / (group_.split == ActivationSplit::batch ? group_.size() : 1);
    const GroupCoordinates coordinates(context, group_, samples);
    inner = lora()->down(context, x, group_.rank() * own, group_.size() * own);
  }
  return row_linear(context, group_, x, *weight_, bias_.get(), transposed_, inner, &lora()->b());
}

std::unique_ptr<nn::Linear> own_outputs(const TensorParallel& group, const nn::LinearConfig& config,
                                        int blocks) {
  nn::LinearConfig part = config;
  part.out = own_part(group, config, blocks);
  auto made = std::make_unique<nn::Linear>(part);
  const std::vector<nn::Parameter*> parameters = made->parameters();
  set_parts(group, config, true, blocks, *parameters[0], config.bias ? parameters[1] : nullptr);
  return made;
}

std::unique_ptr<ColumnParallelLinear> column_parallel(const nn::Module& linear,
                                                      const TensorParallel& group, int blocks) {
  const auto [config, transposed] = as_linear(linear);
  divided(config.out / blocks, group, "output channels", linear.path());
  auto made = std::make_unique<ColumnParallelLinear>(group, config, transposed, blocks);
  inherit_parameters(linear, *made);
  return made;
}

std::unique_ptr<RowParallelLinear> row_parallel(const nn::Module& linear,
                                                const TensorParallel& group) {
  const auto [config, transposed] = as_linear(linear);
  divided(config.in, group, "input channels", linear.path());
  auto made = std::make_unique<RowParallelLinear>(group, config, transposed);
  inherit_parameters(linear, *made);
  return made;
}

void inherit_parameters(const nn::Module& from, nn::Module& to) {
  inherit_adapters(from, to);
  const std::vector<Parameter*> old = from.parameters(), fresh = to.parameters();
  SHOAL_CHECK(old.size() == fresh.size(),
              "{}: a {} of {} parameters cannot take the place of a {} of {}", from.path(),
              to.kind(), fresh.size(), from.kind(), old.size());
  for (std::size_t i = 0; i < old.size(); ++i) {
    if (old[i]->value.defined())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} has a value already", old[i]->name()),
                  "apply tensor parallelism before materialize()");
    fresh[i]->set_trainable(old[i]->trainable());
    fresh[i]->set_decays(old[i]->decays());
  }
}

}  // namespace shoal::parallel
