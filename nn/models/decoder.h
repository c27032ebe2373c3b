// What decoders have in common: a trunk of embeddings, blocks and a last norm, and a head on it.
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

// Embeddings, blocks, last norm: the module under a model's base name ("transformer", "model").
class DecoderTrunk : public Module {
 public:
  virtual std::string_view model_type() const = 0;
  virtual std::string describe() const = 0;  // "2 layers of width 12, ..."
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t positions() const = 0;
  virtual std::int64_t channels() const = 0;
  virtual std::int64_t key_width() const = 0;  // of a position's keys in a block
  virtual float initial_std() const = 0;       // of a new head's weights
  // The id that fills samples up: a text ends with the last other one, as transformers has it.
  virtual std::optional<std::int64_t> padding() const = 0;
  virtual bool tied() const = 0;  // the language model's head to the embedding
  virtual const DecoderLabels& labels() const = 0;
  // Every field of config.json that the model knows, for the head's class.
  virtual nlohmann::ordered_json known_fields(DecoderHead head) const = 0;
  // config.json as transformers writes it for the head's class: the one that was read, with what
  // has changed. `dtype`: of the saved tensors.
  virtual nlohmann::ordered_json to_json(std::string_view dtype, DecoderHead head) const = 0;
  // Where transformers puts the trunk below a head ("model"), and every place where files may have
  // it; its token classifier's name ("score").
  virtual std::string_view base_name(DecoderHead head) const = 0;
  virtual std::vector<std::string_view> base_names() const = 0;
  virtual std::string_view token_head_name() const = 0;
  // Buffers of older versions, by the name below the base.
  virtual bool is_buffer(std::string_view bare) const = 0;

  virtual int blocks() const = 0;
  virtual std::string block_name(int block) const = 0;  // "h.3"
  virtual std::vector<Module*> embeddings() const = 0;
  virtual Module& block(int block) const = 0;
  virtual NormLike& last_norm() const = 0;
  // ids i32 [B, T] -> [B, T, C], the first of them at `first_position`, or each at its own of
  // `positions` (ChainInput; may be undefined).
  virtual Value embed(Context& context, const Tensor& ids, std::int64_t first_position,
                      const Tensor& positions) = 0;
  virtual ResidualStream forward_block(Context& context, int block, ResidualStream stream,
                                       const AttentionInput& input) = 0;
};

// Its units: embeddings, each block, last norm and head.
class Decoder : public Chain {
 public:
  virtual DecoderTrunk& trunk() const = 0;
  virtual DecoderHead head_kind() const = 0;
  std::int64_t vocabulary() const { return trunk().vocabulary(); }
  std::int64_t positions() const { return trunk().positions(); }
  std::string describe() const;  // "llama for sequence classification, 2 layers ..., 3 labels"
  // As load_weights(), under the names that files may have, and keep_generation_config(). The head
  // may be missing.
  LoadReport load(const std::string& directory, const AssignParameter& assign);
  // save_config() writes the directory's generation_config.json as it is there, if there is one.
  // For a language model; transformers keeps it of no other.
  void keep_generation_config(const std::string& directory);
  // Writes config.json, for a language model generation_config.json too, and returns their names;
  // `dtype` is that of the weights beside them.
  std::vector<std::string> save_config(const std::string& directory, DType dtype) const;

  int units() const final { return trunk().blocks() + 2; }
  std::string unit_name(int unit) const final;
  std::vector<Module*> unit_modules(int unit) const final;
  std::int64_t channels() const final { return trunk().channels(); }
  ResidualStream forward_unit(Context& context, int unit, ResidualStream stream,
                              const ChainInput& input) final;

  // forward() keeps only each block's input, and backward runs the block again.
  void set_gradient_checkpointing(bool on) { gradient_checkpointing_ = on; }

 protected:
  virtual Module& head_module() const = 0;
  // The loss of a batch. Starts a new forward for random coordinates.
  LossOutput run(Context& context, const ChainInput& input);

 private:
  bool gradient_checkpointing_ = false;
  std::string generation_config_;  // the text of the file that was read; empty: there was none
};

}  // namespace shoal::nn
