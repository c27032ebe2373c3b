// Linear layers whose weights are cut over the group. A column-parallel one has a part of the
// outputs and starts by enter(); a row-parallel one has a part of the inputs and ends by leave(),
// so that the pair exchanges once. Parameters are parts of the whole layer's, with its names.
#pragma once

#include "shoal/nn/layers/layers.h"
#include "shoal/parallel/tensor/exchange.h"

namespace shoal::parallel {

// activation(enter(x)·W + b), W [in, out/tp] or, transposed, [out/tp, in]. In backward the exchange
// of dx overlaps the weight's gradient. x is kept, not what enter made of it: backward gathers
// again, which overlaps the product for dx.
nn::Value column_linear(nn::Context& context, const TensorParallel& group, const nn::Value& x,
                        nn::Parameter& weight, nn::Parameter* bias,
                        const nn::LinearOptions& options);
// leave(x·W) + b, W [in/tp, out] or, transposed, [out, in/tp]; the bias is whole.
nn::Value row_linear(nn::Context& context, const TensorParallel& group, const nn::Value& x,
                     nn::Parameter& weight, nn::Parameter* bias, bool transposed);

// As Linear (transposed: weight [out, in]) or Conv1D (weight [in, out]) of `config`, the whole
// layer's.
class ColumnParallelLinear final : public nn::LinearLike {
 public:
  // The outputs are `blocks` equal blocks one after another (3: queries, keys, values), each of
  // which is cut over the ranks. out/blocks must divide.
  ColumnParallelLinear(const TensorParallel& group, const nn::LinearConfig& config, bool transposed,
                       int blocks = 1);
  std::string_view kind() const override { return "ColumnParallelLinear"; }
  // local -> whole with out/tp channels (exchange.h)
  nn::Value forward(nn::Context& context, const nn::Value& x) override;

 private:
  TensorParallel group_;
  nn::LinearOptions options_;
  std::shared_ptr<nn::Parameter> weight_, bias_;
};

class RowParallelLinear final : public nn::LinearLike {
 public:
  // in must divide; an activation is refused.
  RowParallelLinear(const TensorParallel& group, const nn::LinearConfig& config, bool transposed);
  std::string_view kind() const override { return "RowParallelLinear"; }
  // whole with in/tp channels -> local
  nn::Value forward(nn::Context& context, const nn::Value& x) override;

 private:
  TensorParallel group_;
  bool transposed_;
  std::shared_ptr<nn::Parameter> weight_, bias_;
};

// A Linear with this rank's part of the outputs of `config`'s, for layers that call enter() once
// for several of them. out must divide.
std::unique_ptr<nn::Linear> own_outputs(const TensorParallel& group,
                                        const nn::LinearConfig& config);

// What takes the place of a Linear or a Conv1D; another kind throws. Not yet materialised.
std::unique_ptr<ColumnParallelLinear> column_parallel(const nn::Module& linear,
                                                      const TensorParallel& group, int blocks = 1);
std::unique_ptr<RowParallelLinear> row_parallel(const nn::Module& linear,
                                                const TensorParallel& group);
// What was set on the replaced module's parameters (frozen, decay) goes on to the new ones, in
// order. Throws where their number differs, or where values are there already.
void inherit_parameters(const nn::Module& from, const nn::Module& to);

}  // namespace shoal::parallel
