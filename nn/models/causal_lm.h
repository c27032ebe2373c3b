// Decoders with a causal language model's head, as generation and training tasks use them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/models/decoder/decoder.h"

namespace shoal::nn {

using DecoderCache = std::vector<KeyValueCache>;  // one per block

// Numerically equal to transformers' LlamaForCausalLM, Qwen3ForCausalLM ...
class CausalLm final : public Decoder {
 public:
  // Names the module tree; call materialize() next. Weight matrices are drawn with the
  // configuration's initializer_range.
  explicit CausalLm(const DecoderConfig& config);
  std::string_view kind() const override { return "CausalLm"; }
  const DecoderConfig& config() const { return base->config(); }
  DecoderTrunk& trunk() const override { return *base; }
  DecoderHead head_kind() const override { return DecoderHead::causal_lm; }

  // The loss of predicting targets i32 [B, T] (shifted by the task; negative: none) from ids i32
  // [B, T], T <= positions(). Resets the random coordinates with begin_forward().
  LossOutput forward(Context& context, const Tensor& ids, const Tensor& targets,
                     const LossOptions& options = {}, const Tensor& key_mask = {});
  // Like forward() above, for all inputs of a microbatch, including packed sequences.
  LossOutput forward(Context& context, const ChainInput& input) { return run(context, input); }
  // Logits of every position, [B, T, V], in evaluate mode without a tape.
  Tensor logits(Context& context, const Tensor& ids, const Tensor& key_mask = {});
  // Incremental decoding: appends ids [B, t] to the cache and returns logits [B, V] of the last
  // position. For rows padded on the left: `key_mask` u8 [B, cached keys and t], 0 for padding, and
  // `positions` i32 [B, t].
  Tensor decode(Context& context, const Tensor& ids, DecoderCache& cache,
                const Tensor& key_mask = {}, const Tensor& positions = {});
  // An empty cache for `capacity` positions, at most positions().
  DecoderCache make_cache(std::int64_t capacity) const;

  LossOutput forward_head(Context& context, ResidualStream stream,
                          const ChainInput& input) override;
  Tensor head_logits(Context& context, ResidualStream stream, const ChainInput& input) override;

  Slot<DecoderTrunk> base;
  Slot<HeadLoss> lm_head;  // with its own weight, or tied to the embedding

 private:
  Module& head_module() const override { return *lm_head; }
  // Normed hidden states [B, T, C] of ids. With a cache, ids continue its positions. For inference
  // only; training runs units.
  Value hidden_states(Context& context, const Tensor& ids, const Tensor& key_mask,
                      DecoderCache* cache, const Tensor& positions = {});
};

// Creates the model of a config.json by its model_type_of(). Errors name `source`.
std::unique_ptr<CausalLm> make_causal_lm(const nlohmann::json& config, std::string_view source);
// `config` completed with all fields that the model knows; overrides may name these.
nlohmann::json complete_causal_lm_config(const nlohmann::json& config, std::string_view source);
// Only the fields that the model knows. Equal for two configurations of the same model.
nlohmann::json known_decoder_fields(const nlohmann::json& config, std::string_view source,
                                    DecoderHead head);
// Number of parameters below the head; a lower bound, because biases are not counted.
double decoder_trunk_parameters(const nlohmann::json& config, std::string_view source);
// The supported model_types: gpt2, llama ...
const std::vector<std::string_view>& causal_lm_types();

}  // namespace shoal::nn
