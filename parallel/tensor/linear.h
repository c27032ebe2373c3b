// Linear layers with weights split over the group. A column-parallel layer computes a part of the
// outputs and begins with enter(). A row-parallel layer consumes a part of the inputs and ends with
// leave(). A pair of them needs only these two exchanges. Parameters are parts of the whole layer's
// and have its names.
#pragma once

#include "shoal/nn/layers/conv1d.h"
#include "shoal/parallel/tensor/exchange.h"

namespace shoal::parallel {

// activation(enter(x)·W + b), W [in, out/tp] or, transposed, [out/tp, in]. In backward the exchange
// of dx overlaps the weight's gradient. The tape keeps x, not the gathered tensor: backward gathers
// again, which overlaps the product for dx.
nn::Value column_linear(nn::Context& context, const TensorParallel& group, const nn::Value& x,
                        nn::Parameter& weight, nn::Parameter* bias,
                        const nn::LinearOptions& options);
// leave(x·W) + b, W [in/tp, out] or, transposed, [out, in/tp]; the bias is not split. With `up`
// [out, rank], which is not split either: leave(x·W + inner·upᵀ) + b, where `inner` [.., rank] is
// made of this rank's inputs.
nn::Value row_linear(nn::Context& context, const TensorParallel& group, const nn::Value& x,
                     nn::Parameter& weight, nn::Parameter* bias, bool transposed,
                     const nn::Value& inner = {}, nn::Parameter* up = nullptr);

// Like Linear (transposed: weight [out, in]) or Conv1D (weight [in, out]). `config` is the whole
// layer's.
class ColumnParallelLinear final : public nn::LinearLike {
 public:
  // The outputs are `blocks` equal blocks (3: queries, keys, values), each split over the ranks.
  // out/blocks must be a multiple of tp.
  ColumnParallelLinear(const TensorParallel& group, const nn::LinearConfig& config, bool transposed,
                       int blocks = 1);
  std::string_view kind() const override { return "ColumnParallelLinear"; }
  // local -> whole with out/tp channels (exchange.h). An adapter's inner product is made of the
  // local rows, with a whole A, and gathered: it is narrow.
  nn::Value forward(nn::Context& context, const nn::Value& x) override;
  Adaptable adaptable() const override { return {weight_.get(), options_.transposed, true}; }

 private:
  TensorParallel group_;
  nn::LinearOptions options_;
  std::shared_ptr<nn::Parameter> weight_, bias_;
};

class RowParallelLinear final : public nn::LinearLike {
 public:
  // `in` must be a multiple of tp; an activation is refused.
  RowParallelLinear(const TensorParallel& group, const nn::LinearConfig& config, bool transposed);
  std::string_view kind() const override { return "RowParallelLinear"; }
  // whole with in/tp channels -> local. An adapter's product joins the sum that leave() makes.
  nn::Value forward(nn::Context& context, const nn::Value& x) override;
  Adaptable adaptable() const override { return {weight_.get(), transposed_}; }

 private:
  TensorParallel group_;
  bool transposed_;
  std::shared_ptr<nn::Parameter> weight_, bias_;
};

// A Linear with this rank's part of the outputs of `config`, for layers that share one enter()
// between several of them. `blocks` as above.
std::unique_ptr<nn::Linear> own_outputs(const TensorParallel& group, const nn::LinearConfig& config,
                                        int blocks = 1);

// Makes the replacement of a Linear or Conv1D. It has no values yet. Throws for other layers.
std::unique_ptr<ColumnParallelLinear> column_parallel(const nn::Module& linear,
                                                      const TensorParallel& group, int blocks = 1);
std::unique_ptr<RowParallelLinear> row_parallel(const nn::Module& linear,
                                                const TensorParallel& group);
// Gives the new module the adapters of the replaced one (LinearLike::adapt()), by the children's
// names, and the settings of its parameters (frozen, decay), in order. Throws if the numbers of
// parameters differ or values exist already.
void inherit_parameters(const nn::Module& from, nn::Module& to);

}  // namespace shoal::parallel
