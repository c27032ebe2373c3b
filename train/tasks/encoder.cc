#include "shoal/train/tasks/encoder.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/kernels/checks.h"
#include "shoal/nn/models/encoder/huggingface.h"
#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {

using Head = nn::EncoderTask;

EncoderWithHead::EncoderWithHead(const nn::EncoderConfig& config, nn::EncoderTask head,
                                 std::shared_ptr<const Tokenizer> tokenizer,
                                 bool gradient_checkpointing)
    : model_(config, head), tokenizer_(std::move(tokenizer)) {
  model_.set_gradient_checkpointing(gradient_checkpointing);
  if (tokenizer_)
    SHOAL_CHECK(tokenizer_->max_id() < config.vocab_size,
                "the tokenizer has ids up to {}, but the model a vocabulary of {}",
                tokenizer_->max_id(), config.vocab_size);
}

std::string EncoderWithHead::describe() const {
  const nn::EncoderConfig& c = config();
  std::string text =
      fmt::format("{} for {}, {} layers of width {}, {} heads, vocabulary {}, {} positions",
                  c.model_type, to_string(head()), c.num_hidden_layers, c.hidden_size,
                  c.num_attention_heads, c.vocab_size, positions());
  if (head() == Head::sequence_classification || head() == Head::token_classification)
    text += regression() ? fmt::format(", {} numbers", c.num_labels)
                         : fmt::format(", {} labels", c.num_labels);
  return text;
}

nlohmann::json EncoderWithHead::configuration() const { return config().known_fields(); }

nlohmann::json EncoderWithHead::configuration_of(const nlohmann::json& other,
                                                 std::string_view source) const {
  return nn::EncoderConfig::from_json(other, source).known_fields();
}

std::int64_t EncoderWithHead::positions() const {
  // RoBERTa's positions begin after the id of the padding token.
  const bool counted = nn::encoder_family(config().model_type).positions_from_ids;
  return config().max_position_embeddings - (counted ? config().pad_token_id.value_or(0) + 1 : 0);
}

bool EncoderWithHead::regression() const {
  return head() == Head::sequence_classification && config().regression();
}

TargetForm EncoderWithHead::target_form() const {
  TargetForm form{.head = std::string(to_string(head())), .classes = config().num_labels};
  if (head() == Head::masked_lm) form.classes = config().vocab_size;
  if (head() == Head::question_answering) form.of = TargetsOf::places;
  if (head() == Head::masked_lm || head() == Head::token_classification)
    form.of = TargetsOf::positions;
  form.numbers = regression();
  return form;
}

Tensor EncoderWithHead::no_targets(std::int64_t rows, std::int64_t length,
                                   MemoryResource& memory) const {
  return shoal::no_targets(target_form(), rows, length, memory);
}

std::int64_t EncoderWithHead::count_targets(const Batch& batch) const {
  return shoal::count_targets(batch.labels);
}

Tensor EncoderWithHead::token_types_of(const Batch& batch) const {
  const std::int64_t types = config().type_vocab_size;
  // DistilBERT has no token types; neither does its tokenizer in transformers.
  if (!batch.token_type_ids.defined() || types == 0) return {};
  kernels::check::ids("token types", batch.token_type_ids, types);
  return types > 1 ? batch.token_type_ids : Tensor();
}

nn::ChainInput EncoderWithHead::chain_input(const Batch& batch, MemoryResource& memory) const {
  nn::ChainInput input = labelled_input(target_form(), batch, vocabulary(), positions(), memory);
  input.key_mask = mask_as_lengths(input.key_mask, memory);
  input.token_types = token_types_of(batch);
  return input;
}

nn::LossOutput EncoderWithHead::loss(nn::Context& context, const nn::ChainInput& input) {
  return model_.forward(context, input);
}

nn::LoadReport EncoderWithHead::load(const std::string& directory, const Assign& assign) {
  return nn::load_encoder_weights(directory, model_, assign);
}

void EncoderWithHead::save(const std::string& directory, const ValueOf& value) const {
  nn::save_encoder(directory, model_, value);
  save_tokenizer_to(directory);
}

void EncoderWithHead::save_setup(const std::string& directory) const {
  nn::save_encoder_config(directory, model_, DType::f32);
  save_tokenizer_to(directory);
}

void EncoderWithHead::save_tokenizer_to(const std::string& directory) const {
  if (tokenizer_) save_tokenizer(*tokenizer_, directory, positions());
}

}  // namespace shoal
