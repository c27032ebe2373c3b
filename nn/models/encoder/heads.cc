#include "shoal/nn/models/encoder/heads.h"

#include <utility>

#include "shoal/nn/layers/lm_head.h"
#include "shoal/nn/layers/lora.h"
#include "shoal/nn/models/encoder/layers.h"
#include "shoal/nn/models/heads.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

class MaskedLmHead final : public TaskHead {
 public:
  MaskedLmHead(const EncoderConfig& config, std::shared_ptr<Parameter> words)
      : dense(*this, encoder_family(config.model_type).lm_dense,
              std::make_unique<Linear>(
                  LinearConfig{.in = config.hidden_size,
                               .out = config.embedding(),
                               .std = std_of(config),
                               .activation = encoder_family(config.model_type).lm_gelu
                                                 ? kernels::Activation::gelu_erf
                                                 : activation_of(config)})),
        norm(*this, encoder_family(config.model_type).lm_norm,
             std::make_unique<LayerNorm>(config.embedding(),
                                         static_cast<float>(config.layer_norm_eps))),
        decoder(*this, encoder_family(config.model_type).lm_head,
                std::make_unique<LmHead>(
                    LmHeadConfig{.vocabulary = config.vocab_size,
                                 .channels = config.embedding(),
                                 .std = std_of(config),
                                 .tied = config.tie_word_embeddings ? std::move(words) : nullptr,
                                 .bias = true,
                                 .weight = encoder_family(config.model_type).lm_decoder})) {}
  std::string_view kind() const override { return "MaskedLmHead"; }
  LossOutput forward(Context& context, const Value& hidden, const ChainInput& input) override {
    // target_rows count whole sequences, so they cannot index split ones. An adapter's dropout is
    // drawn by position, which rows do not have.
    const bool drops = dense->lora() && dense->lora()->config().dropout > 0;
    if (drops || !input.target_rows.defined() || hidden.tensor.shape()[1] != input.ids.shape()[1])
      return decoder->forward(context, transform(context, hidden), input.targets, input.loss);
    return decoder->forward(context,
                            transform(context, rows_at(context, hidden, input.target_rows)),
                            targets_at(context, input.targets, input.target_rows), input.loss);
  }
  Value logits(Context& context, const Value& hidden, const ChainInput& /*input*/) override {
    return Value{decoder->logits(context, transform(context, hidden).tensor)};
  }

  Slot<LinearLike> dense;
  Slot<NormLike> norm;
  Slot<HeadLoss> decoder;

 private:
  Value transform(Context& context, const Value& hidden) {
    return norm->forward(context, dense->forward(context, hidden));
  }
};

class SequenceHead final : public SampleHead {
 public:
  explicit SequenceHead(const EncoderConfig& config)
      : dense(*this, encoder_family(config.model_type).pooler,
              std::make_unique<Linear>(
                  LinearConfig{.in = config.hidden_size,
                               .out = config.hidden_size,
                               .std = std_of(config),
                               .activation = encoder_family(config.model_type).pooling})),
        classifier(*this, encoder_family(config.model_type).classifier,
                   std::make_unique<Linear>(LinearConfig{
                       .in = config.hidden_size, .out = config.num_labels, .std = std_of(config)})),
        first_dropout(
            *this, "first_dropout",
            std::make_unique<Dropout>(encoder_family(config.model_type).drops_before_pooler
                                          ? static_cast<float>(config.sequence_dropout)
                                          : 0.0f)),
        dropout(*this, "sequence_dropout",
                std::make_unique<Dropout>(static_cast<float>(config.sequence_dropout))),
        regression_(config.regression()) {}
  LossOutput loss(Context& context, const Value& hidden, const ChainInput& input) override {
    return sample_loss(context, logits(context, hidden, input), input, regression_);
  }
  Value logits(Context& context, const Value& hidden, const ChainInput& /*input*/) override {
    const Value first = first_dropout->forward(context, position_of_all(context, hidden, 0));
    return classifier->forward(context, dropout->forward(context, dense->forward(context, first)));
  }

  Slot<LinearLike> dense, classifier;
  Slot<Dropout> first_dropout, dropout;

 private:
  bool regression_;
};

}  // namespace

std::unique_ptr<TaskHead> make_encoder_head(const EncoderConfig& config, EncoderTask task,
                                            std::shared_ptr<Parameter> words) {
  HeadSizes sizes{
      .channels = config.hidden_size, .labels = config.num_labels, .std = std_of(config)};
  switch (task) {
    case EncoderTask::masked_lm:
      return std::make_unique<MaskedLmHead>(config, std::move(words));
    case EncoderTask::sequence_classification:
      return std::make_unique<SequenceHead>(config);
    case EncoderTask::question_answering:
      SHOAL_CHECK(config.num_labels == 2, "question answering has 2 labels, not {}",
                  config.num_labels);
      sizes.dropout = static_cast<float>(config.question_dropout);
      return make_question_head(sizes);
    case EncoderTask::token_classification:
      sizes.dropout = static_cast<float>(config.token_dropout);
      return make_token_head("classifier", sizes);
  }
  throw_error(ErrorCode::internal, "unknown task {}", static_cast<int>(task));
}

}  // namespace shoal::nn
