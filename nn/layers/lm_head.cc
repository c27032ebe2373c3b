#include "shoal/nn/layers/lm_head.h"

#include <utility>

#include "shoal/nn/layers/functional_internal.h"

namespace shoal::nn {

LmHead::LmHead(const LmHeadConfig& config) : config_(config), weight_(config.tied) {
  if (weight_)
    share_parameter(config.weight, weight_);
  else
    weight_ = add_parameter(config.weight, {config.vocabulary, config.channels},
                            Initializer{Initializer::Kind::normal, config.std});
  if (config.bias)
    bias_ = add_parameter("bias", {weight_->shape()[0]}, Initializer{Initializer::Kind::zeros, 0},
                          false);
  if (config.constant_bias.empty()) return;
  bias_ = add_parameter(config.constant_bias, {1, weight_->shape()[0]},
                        Initializer{Initializer::Kind::zeros, 0}, false);
  bias_->set_trainable(false);
}
LmHead::LmHead(std::shared_ptr<Parameter> tied) : LmHead(LmHeadConfig{.tied = std::move(tied)}) {}
LmHead::LmHead(std::int64_t vocabulary, std::int64_t channels, float std)
    : LmHead(LmHeadConfig{.vocabulary = vocabulary, .channels = channels, .std = std}) {}

LossOutput LmHead::forward(Context& context, const Value& hidden, const Tensor& targets,
                           const LossOptions& options) {
  LossResult result = linear_cross_entropy(context, hidden, *weight_, targets, options, bias_.get(),
                                           config_.soft_cap);
  return {std::move(result.loss), result.loss_sum, result.targets};
}

Tensor LmHead::logits(Context& context, const Tensor& hidden) {
  const Value plain =
      linear(context, Value{hidden}, *weight_, bias_.get(), {true, kernels::Activation::none});
  return soft_capped(context, plain, config_.soft_cap).tensor;
}

}  // namespace shoal::nn
