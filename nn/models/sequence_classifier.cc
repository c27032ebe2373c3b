#include "shoal/nn/models/sequence_classifier.h"

#include <nlohmann/json.hpp>

#include "shoal/nn/models/inference.h"
#include "shoal/nn/models/llama/classifier.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {

LossOutput SequenceClassifier::forward(Context& context, const ChainInput& input) {
  context.begin_forward();
  return forward_head(
      context,
      forward_units(context, *this, 0, units() - 1, {}, input, gradient_checkpointing_ ? 1 : 0),
      input);
}

Tensor SequenceClassifier::logits(Context& context, const ChainInput& input) {
  const Inference inference(context);
  context.begin_forward();
  return head_logits(context, forward_units(context, *this, 0, units() - 1, {}, input), input);
}

bool has_sequence_classifier(std::string_view model_type) { return model_type == "llama"; }

std::unique_ptr<SequenceClassifier> make_sequence_classifier(const nlohmann::json& config,
                                                             std::string_view source) {
  return std::make_unique<LlamaClassifier>(LlamaConfig::from_json(config, source));
}

}  // namespace shoal::nn
