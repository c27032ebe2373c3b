// Llama's sizes and switches: Hugging Face's LlamaConfig, under the same names and defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/models/decoder_config.h"

namespace shoal::nn {

// How rotary positions are stretched beyond those of pretraining (rope_type of rope_scaling or, in
// transformers 5, of rope_parameters).
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
  std::string source{};  // the text of the config.json that was read; empty: there was none

  // `name` is the file's, for messages. A field of the wrong type, another model_type, or a value
  // that would change the numbers in a way Shoal lacks (hidden_act, a rope_type,
  // quantization_config
  // ...) throws and is named; fields that change nothing are passed over.
  static LlamaConfig from_json(const nlohmann::json& json, std::string_view name);
  // Every field that the model knows.
  nlohmann::ordered_json known_fields(DecoderHead head) const;
  // As transformers writes it, for the head's class: `source` with what has changed. `dtype`: of
  // the saved tensors ("float32").
  nlohmann::ordered_json to_json(std::string_view dtype,
                                 DecoderHead head = DecoderHead::causal_lm) const;

  // Says rotary positions under the names of known_fields(), where transformers 5 has one object.
  static void spell_plainly(nlohmann::json& json);

  void check() const;  // sizes that cannot be: invalid_argument with the numbers
  std::int64_t key_heads() const {
    return num_key_value_heads > 0 ? num_key_value_heads : num_attention_heads;
  }
  std::int64_t head_channels() const {
    return head_dim > 0 ? head_dim : hidden_size / num_attention_heads;
  }
  // How far each pair of a head's elements turns a position, in radians; f32, as transformers.
  std::vector<float> rotary_frequencies() const;
};

}  // namespace shoal::nn
