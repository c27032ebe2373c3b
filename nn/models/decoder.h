// Common parts of decoders: a trunk (embeddings, blocks, last norm) with a head.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/layers/chain.h"
#include "shoal/nn/models/decoder_config.h"
#include "shoal/nn/models/huggingface.h"

namespace shoal::nn {

// Embeddings, blocks and last norm: the module under a model's base name ("transformer", "model").
class DecoderTrunk : public Module {
 public:
  virtual std::string_view model_type() const = 0;
  virtual std::string describe() const = 0;  // "2 layers of width 12, ..."
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t positions() const = 0;
  virtual std::int64_t channels() const = 0;
  virtual std::int64_t key_width() const = 0;  // width of one position's keys in a block
  virtual float initial_std() const = 0;       // for a new head's weights
  // The padding id. As in transformers, a text ends with the last id that differs from it.
  virtual std::optional<std::int64_t> padding() const = 0;
  virtual bool tied() const = 0;  // the language model's head is tied to the embedding
  virtual const DecoderLabels& labels() const = 0;
  // All known config.json fields for the head's class.
  virtual nlohmann::ordered_json known_fields(DecoderHead head) const = 0;
  // config.json as transformers writes it for the head's class: the file that was read, with
  // changes applied. `dtype` is the dtype of the saved tensors.
  virtual nlohmann::ordered_json to_json(std::string_view dtype, DecoderHead head) const = 0;
  // base_name(): the trunk's name below a head in transformers ("model"). base_names(): all names
  // that files may use for it. token_head_name(): the name of the token classifier ("score").
  virtual std::string_view base_name(DecoderHead head) const = 0;
  virtual std::vector<std::string_view> base_names() const = 0;
  virtual std::string_view token_head_name() const = 0;
  // True for buffers saved by older versions. `bare` is the name without the base.
  virtual bool is_buffer(std::string_view bare) const = 0;

  virtual int blocks() const = 0;
  virtual std::string block_name(int block) const = 0;  // "h.3"
  virtual std::vector<Module*> embeddings() const = 0;
  virtual Module& block(int block) const = 0;
  virtual NormLike& last_norm() const = 0;
  // ids i32 [B, T] -> [B, T, C]. Positions count from `first_position`, unless `positions`
  // (ChainInput) is defined.
  virtual Value embed(Context& context, const Tensor& ids, std::int64_t first_position,
                      const Tensor& positions) = 0;
  virtual ResidualStream forward_block(Context& context, int block, ResidualStream stream,
                                       const AttentionInput& input) = 0;
};

// A chain whose units are the embeddings, each block, and the last norm with the head.
class Decoder : public Chain {
 public:
  virtual DecoderTrunk& trunk() const = 0;
  virtual DecoderHead head_kind() const = 0;
  std::int64_t vocabulary() const { return trunk().vocabulary(); }
  std::int64_t positions() const { return trunk().positions(); }
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
  std::int64_t channels() const final { return trunk().channels(); }
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
  std::string generation_config_;  // text of the file that was read; empty: none
};

}  // namespace shoal::nn
