#include "shoal/nn/models/encoder/heads.h"

#include <cmath>
#include <utility>

#include "shoal/nn/layers/lm_head.h"
#include "shoal/nn/layers/lora.h"
#include "shoal/nn/models/encoder/layers.h"
#include "shoal/nn/models/heads.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// Where a family has one transform for all heads, that one.
StateTransform transform_of(const EncoderConfig& config) {
  const EncoderFamily& family = encoder_family(config.model_type);
  return {.dense = family.lm_dense,
          .norm = family.lm_norm,
          .channels = config.hidden_size,
          .width = config.embedding(),
          .activation = family.lm_gelu
                            ? kernels::Activation::gelu_erf
                            : encoder_activation(config.head_act.empty() ? config.hidden_act
                                                                         : config.head_act),
          .std = output_std_of(config),
          .epsilon = static_cast<float>(config.layer_norm_eps),
          .bias = config.head_bias,
          .norm_bias = config.norm_bias};
}

// That of sequence classification, after the pooling.
StateTransform pooled_transform_of(const EncoderConfig& config) {
  const EncoderFamily& family = encoder_family(config.model_type);
  if (family.transforms_states) return transform_of(config);
  return {.dense = family.pooler,
          .channels = config.hidden_size,
          .width = config.hidden_size,
          .activation = family.pooling,
          .std = std_of(config)};
}

// Standard deviation of a new classifier's weight.
float classifier_std(const EncoderConfig& config) {
  if (!encoder_family(config.model_type).scaled_residual) return std_of(config);
  return 1 / std::sqrt(static_cast<float>(config.hidden_size));
}

class MaskedLmHead final : public TaskHead {
 public:
  MaskedLmHead(const EncoderConfig& config, std::shared_ptr<Parameter> words)
      : transform(*this, transform_of(config)),
        decoder(*this, encoder_family(config.model_type).lm_head,
                std::make_unique<LmHead>(
                    LmHeadConfig{.vocabulary = config.vocab_size,
                                 .channels = config.embedding(),
                                 .std = output_std_of(config),
                                 .tied = config.tie_word_embeddings ? std::move(words) : nullptr,
                                 .bias = config.decoder_bias,
                                 .weight = encoder_family(config.model_type).lm_decoder})) {}
  std::string_view kind() const override { return "MaskedLmHead"; }
  LossOutput forward(Context& context, const Value& hidden, const ChainInput& input) override {
    // target_rows count whole sequences, so they cannot index split ones. An adapter's dropout is
    // drawn by position, which rows do not have.
    const Lora* const lora = (*transform.dense)->lora();
    const bool drops = lora && lora->config().dropout > 0;
    if (drops || !input.target_rows.defined() || hidden.tensor.shape()[1] != input.ids.shape()[1])
      return decoder->forward(context, transform.forward(context, hidden), input.targets,
                              input.loss);
    return decoder->forward(context,
                            transform.forward(context, rows_at(context, hidden, input.target_rows)),
                            targets_at(context, input.targets, input.target_rows), input.loss);
  }
  Value logits(Context& context, const Value& hidden, const ChainInput& /*input*/) override {
    return Value{decoder->logits(context, transform.forward(context, hidden).tensor)};
  }

  TransformLayers transform;
  Slot<HeadLoss> decoder;
};

class SequenceHead final : public SampleHead {
 public:
  explicit SequenceHead(const EncoderConfig& config)
      : transform(*this, pooled_transform_of(config)),
        classifier(*this, encoder_family(config.model_type).classifier,
                   std::make_unique<Linear>(LinearConfig{.in = config.hidden_size,
                                                         .out = config.num_labels,
                                                         .std = classifier_std(config)})),
        first_dropout(
            *this, "first_dropout",
            std::make_unique<Dropout>(encoder_family(config.model_type).drops_before_pooler
                                          ? static_cast<float>(config.sequence_dropout)
                                          : 0.0f)),
        dropout(*this, "sequence_dropout",
                std::make_unique<Dropout>(static_cast<float>(config.sequence_dropout))),
        heads_(config.num_attention_heads),
        averages_(config.pooling == "mean"),
        regression_(config.regression()) {}
  LossOutput loss(Context& context, const Value& hidden, const ChainInput& input) override {
    return sample_loss(context, logits(context, hidden, input), input, regression_);
  }
  Value logits(Context& context, const Value& hidden, const ChainInput& input) override {
    const Value pooled =
        averages_ ? mean(context, hidden, input.key_mask) : position_of_all(context, hidden, 0);
    const Value states = transform.forward(context, first_dropout->forward(context, pooled));
    return classifier->forward(context, dropout->forward(context, states));
  }

  TransformLayers transform;
  Slot<LinearLike> classifier;
  Slot<Dropout> first_dropout, dropout;

 private:
  // The mean of the visible positions: [B, T, C] -> [B, C]. To a query of zeros all keys are equal,
  // so its attention is their mean.
  Value mean(Context& context, const Value& hidden, const Tensor& key_mask) const {
    const Tensor& x = hidden.tensor;
    const Tensor query = Tensor::zeros(x.shape().with(1, 1), x.dtype(), context.memory(),
                                       MemoryTag::activations, context.stream);
    AttentionOptions options;
    options.heads = heads_;
    options.causal = false;
    options.key_mask = key_mask;
    return position_of_all(context, attention(context, Value{query}, hidden, hidden, options), 0);
  }

  std::int64_t heads_;
  bool averages_, regression_;
};

}  // namespace

std::unique_ptr<TaskHead> make_encoder_head(const EncoderConfig& config, EncoderTask task,
                                            std::shared_ptr<Parameter> words) {
  const EncoderFamily& family = encoder_family(config.model_type);
  HeadSizes sizes{
      .channels = config.hidden_size, .labels = config.num_labels, .std = classifier_std(config)};
  if (family.transforms_states) sizes.transform = transform_of(config);
  switch (task) {
    case EncoderTask::masked_lm:
      return std::make_unique<MaskedLmHead>(config, std::move(words));
    case EncoderTask::sequence_classification:
      return std::make_unique<SequenceHead>(config);
    case EncoderTask::question_answering:
      SHOAL_CHECK(config.num_labels == 2, "question answering has 2 labels, not {}",
                  config.num_labels);
      sizes.dropout = static_cast<float>(config.question_dropout);
      return make_question_head(family.answers, sizes);
    case EncoderTask::token_classification:
      sizes.dropout = static_cast<float>(config.token_dropout);
      return make_token_head("classifier", sizes);
  }
  throw_error(ErrorCode::internal, "unknown task {}", static_cast<int>(task));
}

}  // namespace shoal::nn
