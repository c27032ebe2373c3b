// T5, BART and mBART with a language model's head (nn/models/encoder_decoder): summarization,
// translation, span corruption and denoising. Other heads: headed_encoder_decoder.h.
#pragma once

#include <memory>
#include <string>

#include "shoal/nn/models/encoder_decoder/model.h"
#include "shoal/train/data/tokenizer/tokenizer.h"
#include "shoal/train/tasks/task.h"

namespace shoal {

// The most positions of a text. Relative positions (T5) have no limit: 2^30.
std::int64_t positions_of(const nn::EncoderDecoderConfig& config);
// Throws invalid_argument if the tokenizer, if any, has ids beyond the vocabulary.
void check_tokenizer(const Tokenizer* tokenizer, const nn::EncoderDecoderConfig& config);
// Saves the tokenizer, if any, for texts of the model's length.
void save_tokenizer_of(const Tokenizer* tokenizer, const nn::EncoderDecoderConfig& config,
                       const std::string& directory);

// Batch::labels are the target's ids, i32 [B, T], of another length than input_ids. The decoder
// reads the labels shifted by one (nn::shifted_right()). Undefined labels: no targets.
class EncoderDecoderTask final : public Task {
 public:
  // Saves `tokenizer`, if any, beside the weights.
  explicit EncoderDecoderTask(const nn::EncoderDecoderConfig& config,
                              std::shared_ptr<const Tokenizer> tokenizer = nullptr,
                              bool gradient_checkpointing = false);

  nn::EncoderDecoder& model() { return model_; }
  nn::Module& module() override { return model_; }
  nn::Chain* chain() override { return &model_; }
  nn::EncoderDecoder* generator() override { return &model_; }
  std::string describe() const override;
  nlohmann::json configuration() const override;
  nlohmann::json configuration_of(const nlohmann::json& other,
                                  std::string_view source) const override;
  std::int64_t vocabulary() const override { return model_.config().vocab_size; }
  std::int64_t positions() const override { return positions_of(model_.config()); }
  bool predicts_tokens() const override { return false; }
  std::int64_t count_targets(const Batch& batch) const override;
  nn::ChainInput chain_input(const Batch& batch, MemoryResource& memory) const override;
  nn::LossOutput loss(nn::Context& context, const nn::ChainInput& input) override;
  nn::LoadReport load(const std::string& directory, const Assign& assign) override;
  void keep_files_of(const std::string& directory) override;
  void save(const std::string& directory, const ValueOf& value) const override;
  void save_setup(const std::string& directory) const override;

 private:
  void check_length(const char* what, std::int64_t length, const char* option) const;

  nn::EncoderDecoder model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace shoal
