// T5, BART and mBART with a head that classifies texts or tokens, or finds answers
// (nn/models/encoder_decoder/headed.h).
#pragma once

#include <memory>
#include <string>

#include "shoal/nn/models/encoder_decoder/headed.h"
#include "shoal/train/data/tokenizer/tokenizer.h"
#include "shoal/train/tasks/targets.h"
#include "shoal/train/tasks/task.h"

namespace shoal {

// Batch::labels by head, as DecoderWithHead's. Each text must have the end-of-text token
// (eos_token_id) if the head classifies texts: it reads the state at the last one.
class EncoderDecoderWithHead final : public Task {
 public:
  // Saves `tokenizer`, if any, beside the weights.
  EncoderDecoderWithHead(const nn::EncoderDecoderConfig& config, nn::DecoderHead head,
                         std::shared_ptr<const Tokenizer> tokenizer = nullptr,
                         bool gradient_checkpointing = false);

  nn::HeadedEncoderDecoder& model() { return model_; }
  nn::Module& module() override { return model_; }
  nn::Chain* chain() override { return &model_; }
  std::string describe() const override { return model_.describe(); }
  nlohmann::json configuration() const override;
  nlohmann::json configuration_of(const nlohmann::json& other,
                                  std::string_view source) const override;
  std::int64_t vocabulary() const override { return model_.config().vocab_size; }
  std::int64_t positions() const override;
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

  nn::HeadedEncoderDecoder model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace shoal
