// Llama's configuration: Hugging Face's LlamaConfig, with the same names and defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/models/decoder_config.h"

namespace shoal::nn {

// Stretching of rotary positions beyond those of pretraining: rope_scaling, or rope_parameters in
// transformers 5.
struct RopeScaling {
  std::string rope_type = "default";  // or linear, llama3
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  std::int64_t original_max_position_embeddings = 8192;
};

struct LlamaConfig {
  std::int64_t vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008,
               num_hidden_layers = 32, num_attention_heads = 32;
  std::int64_t num_key_value_heads = 0;  // 0: num_attention_heads
  std::int64_t head_dim = 0;             // 0: hidden_size / num_attention_heads
  std::int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6, rope_theta = 10000, initializer_range = 0.02, attention_dropout = 0;
  RopeScaling rope_scaling;
  bool attention_bias = false, mlp_bias = false, tie_word_embeddings = false;
  std::optional<std::int64_t> bos_token_id = 1, eos_token_id = 2, pad_token_id;
  DecoderLabels labels{};
  std::string source{};  // text of the config.json that was read; empty: none

  // Errors name the file `name`. Throws on a field of the wrong type, another model_type, or a
  // value that changes the results in a way that Shoal does not implement (hidden_act, a rope_type,
  // quantization_config ...). Ignores fields without effect.
  static LlamaConfig from_json(const nlohmann::json& json, std::string_view name);
  // All fields that the model knows.
  nlohmann::ordered_json known_fields(DecoderHead head) const;
  // config.json as transformers writes it for the head's class: `source` with changes applied.
  // `dtype`: dtype of the saved tensors ("float32").
  nlohmann::ordered_json to_json(std::string_view dtype,
                                 DecoderHead head = DecoderHead::causal_lm) const;

  // Renames the rope_parameters object of transformers 5 to the fields of known_fields().
  static void spell_plainly(nlohmann::json& json);

  void check() const;  // throws invalid_argument on impossible sizes, naming them
  std::int64_t key_heads() const {
    return num_key_value_heads > 0 ? num_key_value_heads : num_attention_heads;
  }
  std::int64_t head_channels() const {
    return head_dim > 0 ? head_dim : hidden_size / num_attention_heads;
  }
  // Parameters of embeddings and blocks, without biases and norms.
  double trunk_parameters() const;
  // Rotation per position in radians, for each pair of a head's elements; f32, as in transformers.
  std::vector<float> rotary_frequencies() const;
};

}  // namespace shoal::nn
