#include "shoal/parallel/tensor/feed_forward.h"

#include "shoal/nn/layers/functional_internal.h"
#include "shoal/parallel/tensor/exchange.h"
#include "shoal/parallel/tensor/linear.h"

namespace shoal::parallel {

TensorParallelFeedForward::TensorParallelFeedForward(const TensorParallel& group,
                                                     const nn::FeedForwardConfig& config)
    : in(*this, config.in, own_outputs(group, config.in_config(), config.fused ? 2 : 1)),
      out(*this, config.out, std::make_unique<RowParallelLinear>(group, config.out_config(), true)),
      dropout(*this, "activation_dropout", std::make_unique<nn::Dropout>(config.dropout)),
      group_(group),
      config_(config) {
  if (!config.gate.empty())
    gate.emplace(*this, config.gate, own_outputs(group, config.gate_config()));
}

nn::Value TensorParallelFeedForward::forward(nn::Context& context, const nn::Value& x) {
  const nn::Value whole = enter(context, group_, x);
  nn::Value inner;
  {
    const GroupCoordinates coordinates(context, group_, x.tensor.shape()[0]);
    inner = in->forward(context, whole);
    if (config_.fused) inner = gated_halves(context, inner, config_.activation);
    if (gate) inner = multiply(context, inner, (*gate)->forward(context, whole));
    nn::DropoutSite site = dropout->site();
    site.column_offset = group_.rank() * (config_.inner / group_.size());
    site.columns = config_.inner;
    inner = nn::dropout(context, inner, site);
  }
  return out->forward(context, inner);
}

}  // namespace shoal::parallel
