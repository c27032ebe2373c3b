#include "shoal/train/tasks/causal_lm.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "shoal/kernels/checks.h"
#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/tasks/targets.h"

namespace shoal {

CausalLmTask::CausalLmTask(std::unique_ptr<nn::CausalLm> model,
                           std::shared_ptr<const Tokenizer> tokenizer,
                           const CausalLmOptions& options)
    : model_(std::move(model)), tokenizer_(std::move(tokenizer)) {
  model_->set_gradient_checkpointing(options.gradient_checkpointing);
  if (tokenizer_)
    SHOAL_CHECK(tokenizer_->max_id() < vocabulary(),
                "the tokenizer has ids up to {}, but the model a vocabulary of {}",
                tokenizer_->max_id(), vocabulary());
}

CausalLmTask::CausalLmTask(const nn::DecoderConfig& config,
                           std::shared_ptr<const Tokenizer> tokenizer,
                           const CausalLmOptions& options)
    : CausalLmTask(std::make_unique<nn::CausalLm>(config), std::move(tokenizer), options) {}

nlohmann::json CausalLmTask::configuration() const {
  return model_->config().known_fields(nn::DecoderHead::causal_lm);
}

nlohmann::json CausalLmTask::configuration_of(const nlohmann::json& other,
                                              std::string_view source) const {
  return nn::known_decoder_fields(other, source, nn::DecoderHead::causal_lm);
}

std::int64_t CausalLmTask::count_targets(const Batch& batch) const {
  const std::int64_t rows = batch.labels.shape()[0], length = batch.labels.shape()[1];
  const auto* labels = batch.labels.const_data<std::int32_t>();
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < rows; ++row)
    count += std::count_if(labels + row * length + std::min<std::int64_t>(1, length),
                           labels + (row + 1) * length, [](std::int32_t id) { return id >= 0; });
  return count;
}

Tensor shift_labels(const Tensor& labels, MemoryResource& memory) {
  const std::int64_t rows = labels.shape()[0], length = labels.shape()[1];
  Tensor targets = Tensor::empty(labels.shape(), DType::i32, memory, MemoryTag::data);
  const auto* from = labels.const_data<std::int32_t>();
  auto* to = targets.data<std::int32_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    if (length == 0) continue;
    std::copy(from + row * length + 1, from + (row + 1) * length, to + row * length);
    to[(row + 1) * length - 1] = kIgnoreLabel;
  }
  return targets;
}

nn::ChainInput CausalLmTask::chain_input(const Batch& batch, MemoryResource& memory) const {
  // Checked here: a device's kernels could report bad ids only after the step was queued.
  kernels::check::ids("embedding", batch.input_ids, vocabulary());
  const Tensor targets = shift_labels(batch.labels, memory);
  const Tensor mask = needed_mask(batch.attention_mask, [&](std::int64_t row, std::int64_t t) {
    return targets.const_data<std::int32_t>()[row * targets.shape()[1] + t] >= 0;
  });
  nn::ChainInput input{batch.input_ids, targets, mask_as_lengths(mask, memory), {}};
  if (!batch.sequences.defined()) return input;
  SHOAL_CHECK(!mask.defined(), "packed sequences with a mask that hides tokens between others");
  input.sequences = batch.sequences;
  input.positions = nn::positions_in(batch.sequences, batch.input_ids.shape()[1], memory);
  return input;
}

nn::LossOutput CausalLmTask::loss(nn::Context& context, const nn::ChainInput& input) {
  return model_->forward(context, input);
}

nn::LoadReport CausalLmTask::load(const std::string& directory, const Assign& assign) {
  return model_->load(directory, assign);
}

void CausalLmTask::keep_files_of(const std::string& directory) {
  model_->keep_generation_config(directory);
}

void CausalLmTask::save(const std::string& directory, const ValueOf& value) const {
  model_->save_config(directory, nn::saved_dtype(*model_, value));
  nn::save_weights(directory, *model_, value);
  save_tokenizer_to(directory);
}

void CausalLmTask::save_setup(const std::string& directory) const {
  model_->save_config(directory, DType::f32);
  save_tokenizer_to(directory);
}

void CausalLmTask::save_tokenizer_to(const std::string& directory) const {
  if (tokenizer_) save_tokenizer(*tokenizer_, directory, positions());
}

}  // namespace shoal
