#include "shoal/train/tasks/encoder_decoder.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/kernels/checks.h"
#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/tasks/targets.h"

namespace shoal {
namespace {

constexpr std::int64_t kNoLimit = std::int64_t{1} << 30;

}  // namespace

std::int64_t positions_of(const nn::EncoderDecoderConfig& config) {
  return config.family().relative_positions ? kNoLimit : config.max_position_embeddings;
}

void check_tokenizer(const Tokenizer* tokenizer, const nn::EncoderDecoderConfig& config) {
  if (tokenizer)
    SHOAL_CHECK(tokenizer->max_id() < config.vocab_size,
                "the tokenizer has ids up to {}, but the model a vocabulary of {}",
                tokenizer->max_id(), config.vocab_size);
}

void save_tokenizer_of(const Tokenizer* tokenizer, const nn::EncoderDecoderConfig& config,
                       const std::string& directory) {
  const std::int64_t longest = positions_of(config);
  if (tokenizer) save_tokenizer(*tokenizer, directory, longest == kNoLimit ? 0 : longest);
}

EncoderDecoderTask::EncoderDecoderTask(const nn::EncoderDecoderConfig& config,
                                       std::shared_ptr<const Tokenizer> tokenizer,
                                       bool gradient_checkpointing)
    : model_(config), tokenizer_(std::move(tokenizer)) {
  model_.set_gradient_checkpointing(gradient_checkpointing);
  check_tokenizer(tokenizer_.get(), config);
}

std::string EncoderDecoderTask::describe() const { return model_.describe(); }

nlohmann::json EncoderDecoderTask::configuration() const { return model_.config().known_fields(); }

nlohmann::json EncoderDecoderTask::configuration_of(const nlohmann::json& other,
                                                    std::string_view source) const {
  return nn::EncoderDecoderConfig::from_json(other, source).known_fields();
}

std::int64_t EncoderDecoderTask::count_targets(const Batch& batch) const {
  return shoal::count_targets(batch.labels);
}

void EncoderDecoderTask::check_length(const char* what, std::int64_t length,
                                      const char* option) const {
  if (length <= positions()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("a {} has {} positions, but the model {}", what, length, positions()),
              fmt::format("cut samples: --{} {}", option, positions()));
}

nn::ChainInput EncoderDecoderTask::chain_input(const Batch& batch, MemoryResource& memory) const {
  // Checked here: a device's kernels could report bad ids only after the step was queued.
  kernels::check::ids("embedding", batch.input_ids, vocabulary());
  SHOAL_CHECK(!batch.sequences.defined(),
              "an encoder-decoder takes one text a row, not packed "
              "sequences");
  const std::int64_t rows = batch.input_ids.shape()[0], length = batch.input_ids.shape()[1];
  check_length("source", length, "max_source_length");
  nn::ChainInput input;
  input.ids = batch.input_ids;
  input.key_mask = mask_as_lengths(batch.attention_mask, memory);
  input.targets = batch.labels;
  if (!input.targets.defined()) input.targets = no_targets(rows, length, memory);
  const Shape& targets = input.targets.shape();
  SHOAL_CHECK(targets.rank() == 2 && targets[0] == rows && input.targets.dtype() == DType::i32,
              "an encoder-decoder takes labels i32 [{}, T], but the batch has {} {}", rows,
              to_string(input.targets.dtype()), to_string(targets));
  check_length("target", targets[1], "max_target_length");
  const auto* const labels = input.targets.const_data<std::int32_t>();
  for (std::int64_t i = 0; i < input.targets.count(); ++i)
    SHOAL_CHECK(labels[i] < vocabulary(), "label {} of row {} is outside the vocabulary of {}",
                labels[i], i / targets[1], vocabulary());
  input.decoder_ids = nn::shifted_right(input.targets, model_.config(), memory);
  return input;
}

nn::LossOutput EncoderDecoderTask::loss(nn::Context& context, const nn::ChainInput& input) {
  return model_.forward(context, input);
}

nn::LoadReport EncoderDecoderTask::load(const std::string& directory, const Assign& assign) {
  return model_.load(directory, assign);
}

void EncoderDecoderTask::keep_files_of(const std::string& directory) {
  model_.keep_generation_config(directory);
}

void EncoderDecoderTask::save(const std::string& directory, const ValueOf& value) const {
  model_.save_config(directory, nn::saved_dtype(model_, value));
  nn::save_weights(directory, model_, value);
  save_tokenizer_of(tokenizer_.get(), model_.config(), directory);
}

void EncoderDecoderTask::save_setup(const std::string& directory) const {
  model_.save_config(directory, DType::f32);
  save_tokenizer_of(tokenizer_.get(), model_.config(), directory);
}

}  // namespace shoal
