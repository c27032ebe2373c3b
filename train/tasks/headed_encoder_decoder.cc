#include "shoal/train/tasks/headed_encoder_decoder.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/encoder_decoder/model.h"
#include "shoal/nn/models/huggingface.h"
#include "shoal/runtime/base/error.h"
#include "shoal/train/tasks/encoder_decoder.h"

namespace shoal {
namespace {

// The place of the last `end` in each row of ids [B, T], i32 [B].
Tensor last_ends(const Tensor& ids, std::optional<std::int64_t> end, MemoryResource& memory) {
  const std::int64_t rows = ids.shape()[0], length = ids.shape()[1];
  Tensor ends = Tensor::empty({rows}, DType::i32, memory, MemoryTag::data);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto* const own = ids.const_data<std::int32_t>() + row * length;
    std::int64_t at = length - 1;
    while (at >= 0 && own[at] != end) --at;
    if (at < 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("row {} has no end of text (eos_token_id {}), whose state is "
                              "classified",
                              row, end ? fmt::to_string(*end) : "null"),
                  "use the model's tokenizer, which ends each text with that token");
    ends.data<std::int32_t>()[row] = static_cast<std::int32_t>(at);
  }
  return ends;
}

}  // namespace

EncoderDecoderWithHead::EncoderDecoderWithHead(const nn::EncoderDecoderConfig& config,
                                               nn::DecoderHead head,
                                               std::shared_ptr<const Tokenizer> tokenizer,
                                               bool gradient_checkpointing)
    : model_(config, head), tokenizer_(std::move(tokenizer)) {
  model_.set_gradient_checkpointing(gradient_checkpointing);
  check_tokenizer(tokenizer_.get(), config);
}

nlohmann::json EncoderDecoderWithHead::configuration() const {
  return model_.config().known_fields(model_.head_kind());
}

nlohmann::json EncoderDecoderWithHead::configuration_of(const nlohmann::json& other,
                                                        std::string_view source) const {
  return nn::EncoderDecoderConfig::from_json(other, source).known_fields(model_.head_kind());
}

TargetForm EncoderDecoderWithHead::target_form() const {
  return shoal::target_form(model_.head_kind(), model_.config().labels);
}

std::int64_t EncoderDecoderWithHead::positions() const { return positions_of(model_.config()); }

std::int64_t EncoderDecoderWithHead::count_targets(const Batch& batch) const {
  return shoal::count_targets(batch.labels);
}

Tensor EncoderDecoderWithHead::no_targets(std::int64_t rows, std::int64_t length,
                                          MemoryResource& memory) const {
  return shoal::no_targets(target_form(), rows, length, memory);
}

nn::ChainInput EncoderDecoderWithHead::chain_input(const Batch& batch,
                                                   MemoryResource& memory) const {
  const nn::EncoderDecoderConfig& config = model_.config();
  nn::ChainInput input = labelled_input(target_form(), batch, vocabulary(), positions(), memory);
  input.key_mask = mask_as_lengths(input.key_mask, memory);
  if (model_.head_kind() == nn::DecoderHead::sequence_classification)
    input.ends = last_ends(input.ids, config.eos_token_id, memory);
  if (model_.decoder) input.decoder_ids = nn::shifted_right(input.ids, config, memory);
  return input;
}

nn::LossOutput EncoderDecoderWithHead::loss(nn::Context& context, const nn::ChainInput& input) {
  return model_.forward(context, input);
}

nn::LoadReport EncoderDecoderWithHead::load(const std::string& directory, const Assign& assign) {
  return model_.load(directory, assign);
}

void EncoderDecoderWithHead::save(const std::string& directory, const ValueOf& value) const {
  model_.save_config(directory, nn::saved_dtype(model_, value));
  nn::save_weights(directory, model_, value);
  save_tokenizer_of(tokenizer_.get(), model_.config(), directory);
}

void EncoderDecoderWithHead::save_setup(const std::string& directory) const {
  model_.save_config(directory, DType::f32);
  save_tokenizer_of(tokenizer_.get(), model_.config(), directory);
}

}  // namespace shoal
