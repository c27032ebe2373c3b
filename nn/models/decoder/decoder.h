// Common parts of decoders: a trunk with a head.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/nn/models/decoder/trunk.h"
#include "shoal/nn/models/generation_config.h"
#include "shoal/nn/models/huggingface.h"

namespace shoal::nn {

// A chain whose units are the embeddings, each block, and the last norm with the head.
class Decoder : public Chain {
 public:
  virtual DecoderTrunk& trunk() const = 0;
  virtual DecoderHead head_kind() const = 0;
  std::int64_t vocabulary() const { return trunk().config().vocab_size; }
  std::int64_t positions() const { return trunk().config().max_position_embeddings; }
  std::string describe() const;  // "llama for sequence classification, 2 layers ..., 3 labels"
  // Like load_weights(), with all names that files may use; also calls keep_generation_config().
  // The head may be missing.
  LoadReport load(const std::string& directory, const AssignParameter& assign);
  // Reads the directory's generation_config.json, if any; save_config() then writes it unchanged.
  // Only for language models, as in transformers.
  void keep_generation_config(const std::string& directory);
  // Writes config.json, and for a language model generation_config.json, and returns their names.
  // `dtype` is the dtype of the saved weights.
  std::vector<std::string> save_config(const std::string& directory, DType dtype) const;

  int units() const final { return trunk().blocks() + 2; }
  std::string unit_name(int unit) const final;
  std::vector<Module*> unit_modules(int unit) const final;
  std::int64_t channels() const final { return trunk().config().hidden_size; }
  ResidualStream forward_unit(Context& context, int unit, ResidualStream stream,
                              const ChainInput& input) final;

  // Keeps only each block's input in forward(); backward recomputes the block.
  void set_gradient_checkpointing(bool on) { gradient_checkpointing_ = on; }
  bool gradient_checkpointing() const final { return gradient_checkpointing_; }

 protected:
  virtual Module& head_module() const = 0;
  // The loss of a batch. Resets the random coordinates with begin_forward().
  LossOutput run(Context& context, const ChainInput& input);

 private:
  bool gradient_checkpointing_ = false;
  GenerationConfig generation_config_;
};

}  // namespace shoal::nn
