// Decoders with a head that classifies texts or tokens, or finds answers
// (nn/models/headed_decoder.h).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "shoal/nn/models/headed_decoder.h"
#include "shoal/train/data/tokenizer/tokenizer.h"
#include "shoal/train/tasks/targets.h"
#include "shoal/train/tasks/task.h"

namespace shoal {

// Batch::labels by head. sequence_classification: i32 [B], or f32 [B, labels] if the model predicts
// numbers. question_answering: i32 [B, 2]. token_classification: i32 [B, T]. Undefined: no labels.
// A value that is not a class or position throws invalid_argument with the row.
class DecoderWithHead final : public Task {
 public:
  // Saves `tokenizer`, if any, beside the weights.
  explicit DecoderWithHead(std::unique_ptr<nn::HeadedDecoder> model,
                           std::shared_ptr<const Tokenizer> tokenizer = nullptr,
                           bool gradient_checkpointing = false);

  nn::HeadedDecoder& model() { return *model_; }
  nn::Module& module() override { return *model_; }
  nn::Chain* chain() override { return model_.get(); }
  std::string describe() const override { return model_->describe(); }
  nlohmann::json configuration() const override;
  nlohmann::json configuration_of(const nlohmann::json& other,
                                  std::string_view source) const override;
  std::int64_t vocabulary() const override { return model_->vocabulary(); }
  std::int64_t positions() const override { return model_->positions(); }
  bool predicts_tokens() const override { return false; }
  std::int64_t count_targets(const Batch& batch) const override;
  nn::ChainInput chain_input(const Batch& batch, MemoryResource& memory) const override;
  Tensor no_targets(std::int64_t rows, std::int64_t length, MemoryResource& memory) const override;
  nn::LossOutput loss(nn::Context& context, const nn::ChainInput& input) override;
  nn::LoadReport load(const std::string& directory, const Assign& assign) override;
  void save(const std::string& directory, const ValueOf& value) const override;
  void save_setup(const std::string& directory) const override;

 private:
  TargetForm target_form() const;
  void save_tokenizer_to(const std::string& directory) const;

  std::unique_ptr<nn::HeadedDecoder> model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

// The last position of each row, i32 [B]: its last id that is not `padding`, as in transformers.
// Without `padding`: its last attended position. The result is 0 if there is no such position.
Tensor ends_of(const Batch& batch, std::optional<std::int64_t> padding, MemoryResource& memory);

}  // namespace shoal
