// Causal language modelling: each position predicts the next token.
#pragma once

#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/train/data/tokenizer/tokenizer.h"
#include "shoal/train/tasks/task.h"

namespace shoal {

struct CausalLmOptions {
  bool gradient_checkpointing = false;
};

class CausalLmTask final : public Task {
 public:
  // Saves `tokenizer`, if any, beside the weights.
  explicit CausalLmTask(std::unique_ptr<nn::CausalLm> model,
                        std::shared_ptr<const Tokenizer> tokenizer = nullptr,
                        const CausalLmOptions& options = {});
  explicit CausalLmTask(const nn::DecoderConfig& config,
                        std::shared_ptr<const Tokenizer> tokenizer = nullptr,
                        const CausalLmOptions& options = {});

  nn::CausalLm& model() { return *model_; }
  nn::Module& module() override { return *model_; }
  nn::Chain* chain() override { return model_.get(); }
  nn::CausalLm* causal_lm() override { return model_.get(); }
  std::string describe() const override { return model_->describe(); }
  nlohmann::json configuration() const override;
  nlohmann::json configuration_of(const nlohmann::json& other,
                                  std::string_view source) const override;
  std::int64_t vocabulary() const override { return model_->vocabulary(); }
  std::int64_t positions() const override { return model_->positions(); }
  std::int64_t count_targets(const Batch& batch) const override;
  nn::ChainInput chain_input(const Batch& batch, MemoryResource& memory) const override;
  nn::LossOutput loss(nn::Context& context, const nn::ChainInput& input) override;
  nn::LoadReport load(const std::string& directory, const Assign& assign) override;
  void keep_files_of(const std::string& directory) override;
  void save(const std::string& directory, const ValueOf& value) const override;
  void save_setup(const std::string& directory) const override;

 private:
  void save_tokenizer_to(const std::string& directory) const;

  std::unique_ptr<nn::CausalLm> model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

// labels [B, T] -> targets [B, T]: targets[b, t] = labels[b, t + 1]; the last position has no
// target.
Tensor shift_labels(const Tensor& labels, MemoryResource& memory);

}  // namespace shoal
