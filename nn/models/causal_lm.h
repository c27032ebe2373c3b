// Decoders with a causal language model's head: what generation and tasks need of them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/models/decoder.h"

namespace shoal::nn {

using DecoderCache = std::vector<KeyValueCache>;  // one a block

// Models ready for materialize(); weight matrices are drawn with their configuration's
// initializer_range.
class CausalLm : public Decoder {
 public:
  DecoderHead head_kind() const final { return DecoderHead::causal_lm; }

  // The loss of predicting targets i32 [B, T] (shifted by the task; negative: none) from ids i32
  // [B, T], T <= positions(). Starts a new forward for random coordinates.
  LossOutput forward(Context& context, const Tensor& ids, const Tensor& targets,
                     const LossOptions& options = {}, const Tensor& key_mask = {});
  // The same of all that a microbatch may have, packed sequences too.
  LossOutput forward(Context& context, const ChainInput& input) { return run(context, input); }
  // Logits of every position, [B, T, V]; evaluate mode, nothing recorded.
  Tensor logits(Context& context, const Tensor& ids, const Tensor& key_mask = {});
  // Incremental decoding: appends ids [B, t] to the cache; logits [B, V] of the last position.
  Tensor decode(Context& context, const Tensor& ids, DecoderCache& cache);
  // `capacity` positions for `batch` sequences, at most positions().
  DecoderCache make_cache(Context& context, std::int64_t batch, std::int64_t capacity);

  LossOutput forward_head(Context& context, ResidualStream stream, const ChainInput& input) final;
  Tensor head_logits(Context& context, ResidualStream stream, const ChainInput& input) final;

 protected:
  virtual HeadLoss& head() const = 0;
  // lm_head: of its own weight, or of the table of the trunk's embedding.
  static std::unique_ptr<HeadLoss> make_head(const DecoderTrunk& trunk,
                                             std::shared_ptr<Parameter> table);

 private:
  Module& head_module() const final { return head(); }
  // Normed hidden states [B, T, C] of ids; with a cache, ids are the positions after those it
  // holds. For inference: training runs units.
  Value hidden_states(Context& context, const Tensor& ids, const Tensor& key_mask,
                      DecoderCache* cache);
};

// Of a config.json by its model_type (none: gpt2); `source` names it in messages.
std::unique_ptr<CausalLm> make_causal_lm(const nlohmann::json& config, std::string_view source);
// The same with every field that the model knows, which overrides may name.
nlohmann::json complete_causal_lm_config(const nlohmann::json& config, std::string_view source);
// The fields that the model knows, alone: what two configurations of one model agree in.
nlohmann::json known_decoder_fields(const nlohmann::json& config, std::string_view source,
                                    DecoderHead head);
// The model_types of these: gpt2, llama.
const std::vector<std::string_view>& causal_lm_types();

}  // namespace shoal::nn
