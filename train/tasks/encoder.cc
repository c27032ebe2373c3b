#include "shoal/train/tasks/encoder.h"

#include <algorithm>
#include <cmath>
#include <limits>
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

nlohmann::json EncoderWithHead::configuration() const {
  return config().to_json(head(), "float32");
}

std::int64_t EncoderWithHead::positions() const {
  // RoBERTa's count begins behind the padding's id.
  const bool counted = nn::encoder_family(config().model_type).positions_from_ids;
  return config().max_position_embeddings - (counted ? config().pad_token_id.value_or(0) + 1 : 0);
}

bool EncoderWithHead::regression() const {
  return head() == Head::sequence_classification && config().regression();
}

std::int64_t EncoderWithHead::classes() const {
  if (head() == Head::masked_lm) return config().vocab_size;
  return head() == Head::question_answering ? 0 : config().num_labels;
}

Shape EncoderWithHead::target_shape(std::int64_t rows, std::int64_t length) const {
  if (head() == Head::question_answering) return {rows, 2};
  if (head() != Head::sequence_classification) return {rows, length};
  return regression() ? Shape{rows, config().num_labels} : Shape{rows};
}

Tensor EncoderWithHead::no_targets(std::int64_t rows, std::int64_t length,
                                   MemoryResource& memory) const {
  const Shape shape = target_shape(rows, length);
  Tensor targets =
      Tensor::empty(shape, regression() ? DType::f32 : DType::i32, memory, MemoryTag::data);
  if (regression())
    std::fill_n(targets.data<float>(), targets.count(), std::numeric_limits<float>::quiet_NaN());
  else
    std::fill_n(targets.data<std::int32_t>(), targets.count(), kIgnoreLabel);
  return targets;
}

std::int64_t EncoderWithHead::count_targets(const Batch& batch) const {
  const Tensor& labels = batch.labels;
  if (!labels.defined()) return 0;
  if (labels.dtype() == DType::f32)
    return std::count_if(labels.const_data<float>(), labels.const_data<float>() + labels.count(),
                         [](float value) { return !std::isnan(value); });
  const auto* const ids = labels.const_data<std::int32_t>();
  return std::count_if(ids, ids + labels.count(), [](std::int32_t id) { return id >= 0; });
}

Tensor EncoderWithHead::targets_of(const Batch& batch, MemoryResource& memory) const {
  const std::int64_t rows = batch.input_ids.shape()[0], length = batch.input_ids.shape()[1];
  const Tensor& labels = batch.labels;
  if (!labels.defined()) return no_targets(rows, length, memory);
  SHOAL_CHECK(labels.storage() != batch.input_ids.storage(),
              "{} is given its own input as labels; the data must say what the labels are",
              to_string(head()));
  const Shape wanted = target_shape(rows, length);
  const DType dtype = regression() ? DType::f32 : DType::i32;
  SHOAL_CHECK(labels.shape() == wanted && labels.dtype() == dtype,
              "{} takes labels {} {}, but the batch has {} {}{}", to_string(head()),
              to_string(dtype), to_string(wanted), to_string(labels.dtype()),
              to_string(labels.shape()),
              dtype == DType::f32 ? " (a model of one label, or with problem_type regression, "
                                    "learns numbers)"
                                  : "");
  if (regression()) return labels;
  const std::int64_t bound = classes() > 0 ? classes() : length;
  const auto* const ids = labels.const_data<std::int32_t>();
  const auto* const end = ids + labels.count();
  const auto* const wrong =
      std::find_if(ids, end, [bound](std::int32_t id) { return id >= bound; });
  if (wrong == end) return labels;
  const std::int64_t row = (wrong - ids) / std::max<std::int64_t>(labels.count() / rows, 1);
  if (classes() > 0)
    throw_error(ErrorCode::invalid_argument,
                "label {} of row {} is out of range: the model has labels 0 to {}", *wrong, row,
                bound - 1);
  throw_error(ErrorCode::invalid_argument,
              "the answer of row {} is at position {}, but its batch has {}", row, *wrong, length);
}

Tensor EncoderWithHead::token_types_of(const Batch& batch) const {
  const std::int64_t types = config().type_vocab_size;
  // DistilBERT knows none; its tokenizer in transformers gives none either.
  if (!batch.token_type_ids.defined() || types == 0) return {};
  kernels::check::ids("token types", batch.token_type_ids, types);
  return types > 1 ? batch.token_type_ids : Tensor();
}

nn::ChainInput EncoderWithHead::chain_input(const Batch& batch, MemoryResource& memory) const {
  // Kernels of a device could only complain when the step is long queued.
  kernels::check::ids("embedding", batch.input_ids, config().vocab_size);
  const std::int64_t length = batch.input_ids.shape()[1];
  if (length > positions())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a sample has {} positions, but the model {}", length, positions()),
                fmt::format("cut samples: --max_seq_length {}", positions()));
  nn::ChainInput input;
  input.ids = batch.input_ids;
  input.targets = targets_of(batch, memory);
  input.key_mask = batch.attention_mask;
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
