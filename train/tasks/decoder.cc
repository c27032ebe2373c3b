#include "shoal/train/tasks/decoder.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/huggingface.h"
#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {

DecoderWithHead::DecoderWithHead(std::unique_ptr<nn::HeadedDecoder> model,
                                 std::shared_ptr<const Tokenizer> tokenizer,
                                 bool gradient_checkpointing)
    : model_(std::move(model)), tokenizer_(std::move(tokenizer)) {
  model_->set_gradient_checkpointing(gradient_checkpointing);
  if (tokenizer_)
    SHOAL_CHECK(tokenizer_->max_id() < vocabulary(),
                "the tokenizer has ids up to {}, but the model a vocabulary of {}",
                tokenizer_->max_id(), vocabulary());
}

nlohmann::json DecoderWithHead::configuration() const {
  return model_->trunk().config().known_fields(model_->head_kind());
}

nlohmann::json DecoderWithHead::configuration_of(const nlohmann::json& other,
                                                 std::string_view source) const {
  return nn::known_decoder_fields(other, source, model_->head_kind());
}

TargetForm DecoderWithHead::target_form() const {
  return shoal::target_form(model_->head_kind(), model_->trunk().config().labels);
}

std::int64_t DecoderWithHead::count_targets(const Batch& batch) const {
  return shoal::count_targets(batch.labels);
}

Tensor DecoderWithHead::no_targets(std::int64_t rows, std::int64_t length,
                                   MemoryResource& memory) const {
  return shoal::no_targets(target_form(), rows, length, memory);
}

Tensor ends_of(const Batch& batch, std::optional<std::int64_t> padding, MemoryResource& memory) {
  const std::int64_t rows = batch.input_ids.shape()[0], length = batch.input_ids.shape()[1];
  const auto* const ids = batch.input_ids.const_data<std::int32_t>();
  const auto* const mask =
      batch.attention_mask.defined() ? batch.attention_mask.const_data<std::uint8_t>() : nullptr;
  Tensor ends = Tensor::empty({rows}, DType::i32, memory, MemoryTag::data);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto is_text = [&](std::int64_t t) {
      const std::int64_t at = row * length + t;
      return padding ? ids[at] != *padding : mask == nullptr || mask[at] != 0;
    };
    std::int64_t end = length - 1;
    while (end > 0 && !is_text(end)) --end;
    ends.data<std::int32_t>()[row] = static_cast<std::int32_t>(end);
  }
  return ends;
}

nn::ChainInput DecoderWithHead::chain_input(const Batch& batch, MemoryResource& memory) const {
  nn::ChainInput input = labelled_input(target_form(), batch, vocabulary(), positions(), memory);
  if (model_->head_kind() == nn::DecoderHead::sequence_classification)
    input.ends = ends_of(batch, model_->trunk().config().pad_token_id, memory);
  // Answers are searched in all positions, including padding.
  if (model_->head_kind() != nn::DecoderHead::question_answering) {
    const auto* const places =
        (input.ends.defined() ? input.ends : input.targets).const_data<std::int32_t>();
    input.key_mask = needed_mask(input.key_mask, [&](std::int64_t row, std::int64_t t) {
      return input.ends.defined() ? places[row] == t : places[row * input.ids.shape()[1] + t] >= 0;
    });
  }
  input.key_mask = mask_as_lengths(input.key_mask, memory);
  return input;
}

nn::LossOutput DecoderWithHead::loss(nn::Context& context, const nn::ChainInput& input) {
  return model_->forward(context, input);
}

nn::LoadReport DecoderWithHead::load(const std::string& directory, const Assign& assign) {
  return model_->load(directory, assign);
}

void DecoderWithHead::save(const std::string& directory, const ValueOf& value) const {
  model_->save_config(directory, nn::saved_dtype(*model_, value));
  nn::save_weights(directory, *model_, value);
  save_tokenizer_to(directory);
}

void DecoderWithHead::save_setup(const std::string& directory) const {
  model_->save_config(directory, DType::f32);
  save_tokenizer_to(directory);
}

void DecoderWithHead::save_tokenizer_to(const std::string& directory) const {
  if (!tokenizer_) return;
  std::optional<TokenId> padding;
  if (const auto said = model_->trunk().config().pad_token_id)
    padding = static_cast<TokenId>(*said);
  save_tokenizer(*tokenizer_, directory, positions(), padding);
}

}  // namespace shoal
