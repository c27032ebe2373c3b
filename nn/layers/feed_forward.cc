#include "shoal/nn/layers/feed_forward.h"

#include "shoal/nn/layers/functional_internal.h"

namespace shoal::nn {
FeedForward::FeedForward(const FeedForwardConfig& config)
    : in(*this, config.in, std::make_unique<Linear>(config.in_config())),
      out(*this, config.out, std::make_unique<Linear>(config.out_config())),
      dropout(*this, "activation_dropout", std::make_unique<Dropout>(config.dropout)),
      config_(config) {
  if (!config.gate.empty())
    gate.emplace(*this, config.gate, std::make_unique<Linear>(config.gate_config()));
}

Value FeedForward::forward(Context& context, const Value& x) {
  Value inner = in->forward(context, x);
  if (config_.fused) inner = gated_halves(context, inner, config_.activation);
  if (gate) inner = multiply(context, inner, (*gate)->forward(context, x));
  return out->forward(context, dropout->forward(context, inner));
}

}  // namespace shoal::nn
