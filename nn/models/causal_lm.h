// Decoders with a causal language model's head: what generation and tasks need of them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/layers/chain.h"
#include "shoal/nn/models/huggingface.h"

namespace shoal::nn {

using DecoderCache = std::vector<KeyValueCache>;  // one a block

class CausalLm : public Chain {
 public:
  virtual std::string describe() const = 0;  // "gpt2, 12 layers of width 768, ..."
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t positions() const = 0;
  // As load_weights(), under the names that the model's files may have.
  virtual LoadReport load(const std::string& directory, const AssignParameter& assign) = 0;
  // Writes config.json and generation_config.json, and returns their names; `dtype` is that of the
  // weights beside them.
  virtual std::vector<std::string> save_config(const std::string& directory, DType dtype) const = 0;

  // The loss of predicting targets i32 [B, T] (shifted by the task; negative: none) from ids i32
  // [B, T], T <= positions(). Starts a new forward for random coordinates.
  LossOutput forward(Context& context, const Tensor& ids, const Tensor& targets,
                     const LossOptions& options = {}, const Tensor& key_mask = {});
  // Logits of every position, [B, T, V]; evaluate mode, nothing recorded.
  Tensor logits(Context& context, const Tensor& ids, const Tensor& key_mask = {});
  // Incremental decoding: appends ids [B, t] to the cache; logits [B, V] of the last position.
  Tensor decode(Context& context, const Tensor& ids, DecoderCache& cache);
  // `capacity` positions for `batch` sequences, at most positions().
  DecoderCache make_cache(Context& context, std::int64_t batch, std::int64_t capacity);

  // forward() keeps only each block's input, and backward runs the block again.
  void set_gradient_checkpointing(bool on) { gradient_checkpointing_ = on; }

 protected:
  // Normed hidden states [B, T, C] of ids; with a cache, ids are the positions after those it
  // holds. For inference: training runs units.
  virtual Value hidden_states(Context& context, const Tensor& ids, const Tensor& key_mask,
                              DecoderCache* cache) = 0;
  virtual HeadLoss& head() = 0;
  virtual std::int64_t key_width() const = 0;  // of a position's keys in a block

 private:
  bool gradient_checkpointing_ = false;
};

// Of a config.json by its model_type (none: gpt2); `source` names it in messages.
std::unique_ptr<CausalLm> make_causal_lm(const nlohmann::json& config, std::string_view source);
// The same with every field that the model knows, as it would be written.
nlohmann::json complete_causal_lm_config(const nlohmann::json& config, std::string_view source);
// The model_types of these: gpt2, llama.
const std::vector<std::string_view>& causal_lm_types();

}  // namespace shoal::nn
