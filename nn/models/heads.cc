#include "shoal/nn/models/heads.h"

#include <utility>

namespace shoal::nn {
namespace {

LossOutput output_of(LossResult result) {
  return {std::move(result.loss), result.loss_sum, result.targets};
}

class TokenHead final : public SampleHead {
 public:
  TokenHead(const std::string& name, const HeadSizes& sizes)
      : transform(*this, sizes.transform),
        classifier(*this, name,
                   std::make_unique<Linear>(
                       LinearConfig{.in = sizes.channels, .out = sizes.labels, .std = sizes.std})),
        dropout(*this, "token_dropout", std::make_unique<Dropout>(sizes.dropout)) {}
  LossOutput loss(Context& context, const Value& hidden, const ChainInput& input) override {
    return output_of(
        cross_entropy(context, logits(context, hidden, input), input.targets, input.loss));
  }
  Value logits(Context& context, const Value& hidden, const ChainInput& /*input*/) override {
    const Value states = transform.forward(context, hidden);
    return classifier->forward(context, dropout->forward(context, states));
  }

  TransformLayers transform;
  Slot<LinearLike> classifier;
  Slot<Dropout> dropout;
};

// Two softmaxes over the positions. The loss is the mean over all valid targets of both.
// transformers averages the two means; the results differ only if a sample has just one of the
// targets.
class QuestionHead final : public SampleHead {
 public:
  QuestionHead(const std::string& name, const HeadSizes& sizes)
      : transform(*this, sizes.transform),
        outputs(*this, name,
                std::make_unique<Linear>(
                    LinearConfig{.in = sizes.channels, .out = 2, .std = sizes.std})),
        dropout(*this, "question_dropout", std::make_unique<Dropout>(sizes.dropout)) {}
  LossOutput loss(Context& context, const Value& hidden, const ChainInput& input) override {
    return output_of(cross_entropy(context,
                                   transpose_samples(context, logits(context, hidden, input)),
                                   input.targets, input.loss));
  }
  Value logits(Context& context, const Value& hidden, const ChainInput& /*input*/) override {
    const Value states = transform.forward(context, hidden);
    return outputs->forward(context, dropout->forward(context, states));
  }

  TransformLayers transform;
  Slot<LinearLike> outputs;
  Slot<Dropout> dropout;
};

// Scores only the selected position. transformers' decoders score every position and select one,
// with the same result.
class EndHead final : public SampleHead {
 public:
  EndHead(const std::string& name, const HeadSizes& sizes, bool numbers)
      : transform(*this, sizes.transform),
        classifier(
            *this, name,
            std::make_unique<Linear>(LinearConfig{
                .in = sizes.channels, .out = sizes.labels, .bias = sizes.bias, .std = sizes.std})),
        first_dropout(*this, "first_dropout", std::make_unique<Dropout>(sizes.first_dropout)),
        dropout(*this, "end_dropout", std::make_unique<Dropout>(sizes.dropout)),
        numbers_(numbers) {}
  LossOutput loss(Context& context, const Value& hidden, const ChainInput& input) override {
    return sample_loss(context, logits(context, hidden, input), input, numbers_);
  }
  Value logits(Context& context, const Value& hidden, const ChainInput& input) override {
    // Default: the last position.
    const Value end = input.ends.defined()
                          ? positions_at(context, hidden, input.ends)
                          : position_of_all(context, hidden, hidden.tensor.shape()[1] - 1);
    const Value states = transform.forward(context, first_dropout->forward(context, end));
    return classifier->forward(context, dropout->forward(context, states));
  }

  TransformLayers transform;
  Slot<LinearLike> classifier;
  Slot<Dropout> first_dropout, dropout;

 private:
  bool numbers_;
};

}  // namespace

TransformLayers::TransformLayers(Module& head, const StateTransform& config) {
  if (!config.dense.empty())
    dense.emplace(head, config.dense,
                  std::make_unique<Linear>(LinearConfig{.in = config.channels,
                                                        .out = config.width,
                                                        .bias = config.bias,
                                                        .std = config.std,
                                                        .activation = config.activation}));
  if (!config.norm.empty())
    norm.emplace(head, config.norm,
                 std::make_unique<LayerNorm>(config.width, config.epsilon, config.norm_bias));
}

Value TransformLayers::forward(Context& context, const Value& x) {
  const Value out = dense ? (*dense)->forward(context, x) : x;
  return norm ? (*norm)->forward(context, out) : out;
}

LossOutput sample_loss(Context& context, const Value& scores, const ChainInput& input,
                       bool numbers) {
  return output_of(numbers ? squared_error(context, scores, input.targets, input.loss)
                           : cross_entropy(context, scores, input.targets, input.loss));
}

std::unique_ptr<TaskHead> make_token_head(const std::string& name, const HeadSizes& sizes) {
  return std::make_unique<TokenHead>(name, sizes);
}

std::unique_ptr<TaskHead> make_question_head(const std::string& name, const HeadSizes& sizes) {
  return std::make_unique<QuestionHead>(name, sizes);
}

std::unique_ptr<TaskHead> make_end_head(const std::string& name, const HeadSizes& sizes,
                                        bool numbers) {
  return std::make_unique<EndHead>(name, sizes, numbers);
}

}  // namespace shoal::nn
