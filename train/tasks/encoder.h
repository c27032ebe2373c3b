// BERT, RoBERTa, DistilBERT and ALBERT with one of four heads (nn/models/encoder).
#pragma once

#include <memory>
#include <string>

#include "shoal/nn/models/encoder/model.h"
#include "shoal/train/data/tokenizer/tokenizer.h"
#include "shoal/train/tasks/targets.h"
#include "shoal/train/tasks/task.h"

namespace shoal {

// Batch::labels by head. masked_lm and token_classification: i32 [B, T], the token at masked
// positions, or the position's class. sequence_classification: i32 [B], or f32 [B, labels] for
// regression. question_answering: i32 [B, 2], first and last position of the answer. Undefined: no
// labels. A value that is not a class, position or token throws invalid_argument with the row.
class EncoderWithHead final : public Task {
 public:
  // Saves `tokenizer`, if any, beside the weights.
  EncoderWithHead(const nn::EncoderConfig& config, nn::EncoderTask head,
                  std::shared_ptr<const Tokenizer> tokenizer = nullptr,
                  bool gradient_checkpointing = false);

  nn::Encoder& model() { return model_; }
  nn::Module& module() override { return model_; }
  nn::Chain* chain() override { return &model_; }
  std::string describe() const override;
  nlohmann::json configuration() const override;
  nlohmann::json configuration_of(const nlohmann::json& other,
                                  std::string_view source) const override;
  std::int64_t vocabulary() const override { return config().vocab_size; }
  std::int64_t positions() const override;
  bool predicts_tokens() const override { return head() == nn::EncoderTask::masked_lm; }
  std::int64_t count_targets(const Batch& batch) const override;
  nn::ChainInput chain_input(const Batch& batch, MemoryResource& memory) const override;
  Tensor no_targets(std::int64_t rows, std::int64_t length, MemoryResource& memory) const override;
  nn::LossOutput loss(nn::Context& context, const nn::ChainInput& input) override;
  nn::LoadReport load(const std::string& directory, const Assign& assign) override;
  void save(const std::string& directory, const ValueOf& value) const override;
  void save_setup(const std::string& directory) const override;

 private:
  const nn::EncoderConfig& config() const { return model_.config(); }
  nn::EncoderTask head() const { return model_.task(); }
  bool regression() const;
  TargetForm target_form() const;
  Tensor token_types_of(const Batch& batch) const;
  void save_tokenizer_to(const std::string& directory) const;

  nn::Encoder model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace shoal
