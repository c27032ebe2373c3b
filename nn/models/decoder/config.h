// Configuration of the decoders (GPT-2, Llama, Qwen ...), which share one model. Fields have
// Llama's names. Each family's family.cc maps them to the family's own names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/models/decoder/labels.h"
#include "shoal/nn/models/decoder/rotary.h"

namespace shoal::nn {

struct DecoderFamily;

struct DecoderConfig {
  std::string model_type = "llama";
  std::int64_t vocab_size = 32000, hidden_size = 4096, num_hidden_layers = 32,
               num_attention_heads = 32;
  std::int64_t intermediate_size = 11008;  // 0: 4 × hidden_size (GPT-2)
  std::int64_t num_key_value_heads = 0;    // 0: num_attention_heads
  std::int64_t head_dim = 0;               // 0: hidden_size / num_attention_heads
  std::int64_t max_position_embeddings = 2048;
  std::string hidden_act = "silu";  // GPT-2: gelu_new, gelu (erf) or gelu_pytorch_tanh
  double norm_eps = 1e-6, initializer_range = 0.02;
  double embedding_dropout = 0, attention_dropout = 0;
  double hidden_dropout = 0;  // at the end of attention and of MLP
  double rope_theta = 10000;
  double rotary_fraction = 1;   // of each head's channels that turn
  double rope_local_theta = 0;  // of layers with a window, which are not scaled; 0: as others
  RopeScaling rope_scaling{};
  bool parallel_residual = false;  // attention and MLP of a block read the same residual stream
  bool attention_bias = false, mlp_bias = false, tie_word_embeddings = false;
  std::int64_t query_pre_attn_scalar = 0;  // > 0: scores are divided by its root
  // Soft caps (kernels/attention.h, kernels/loss.h) of scores and of the language model's logits.
  std::optional<double> attention_soft_cap{}, logit_soft_cap{};
  bool scale_attn_weights = true;                // scores / sqrt(head size)
  bool scale_attn_by_inverse_layer_idx = false;  // also / (layer + 1)
  // Sliding window: each query sees this many keys at most, its own included. It applies to the
  // layers from max_window_layers on or, if layer_types is not empty, to those that are
  // "sliding_attention" and not "full_attention" there.
  std::optional<std::int64_t> sliding_window{};
  bool use_sliding_window = true;
  std::int64_t max_window_layers = 0;
  std::int64_t sliding_window_pattern = 0;  // n > 0: instead, every layer but each n-th
  std::vector<std::string> layer_types{};
  std::optional<std::int64_t> bos_token_id = 1, eos_token_id = 2, pad_token_id{};
  DecoderLabels labels{};
  std::string source{};  // text of the config.json that was read; empty: none

  static DecoderConfig of(std::string_view model_type);  // the family's defaults
  // Errors name the file `name`. Throws on an unknown model_type, a field of the wrong type, or a
  // value that changes the results in a way that Shoal does not implement (hidden_act, a rope_type,
  // quantization_config ...). Ignores fields without effect.
  static DecoderConfig from_json(const nlohmann::json& json, std::string_view name);
  static DecoderConfig from_file(const std::string& path);
  // All fields that the model knows, with the family's names.
  nlohmann::ordered_json known_fields(DecoderHead head) const;
  // config.json as transformers writes it for the head's class: `source` with changes applied.
  // `dtype`: dtype of the saved tensors ("float32").
  nlohmann::ordered_json to_json(std::string_view dtype,
                                 DecoderHead head = DecoderHead::causal_lm) const;

  // Throws invalid_argument on an unknown model_type.
  const DecoderFamily& family() const;
  void check() const;  // throws invalid_argument on impossible values, naming them
  std::int64_t inner() const { return intermediate_size > 0 ? intermediate_size : 4 * hidden_size; }
  std::int64_t key_heads() const {
    return num_key_value_heads > 0 ? num_key_value_heads : num_attention_heads;
  }
  std::int64_t head_channels() const {
    return head_dim > 0 ? head_dim : hidden_size / num_attention_heads;
  }
  bool slides(std::int64_t layer) const;          // the layer has a window
  std::int64_t window(std::int64_t layer) const;  // 0: none
  float attention_scale(std::int64_t layer) const;
  RotaryAngles rotary_angles() const {
    return rope_scaling.angles(rope_theta, rotary_channels(), max_position_embeddings);
  }
  RotaryAngles local_angles() const {
    return RopeScaling{}.angles(rope_local_theta, rotary_channels(), max_position_embeddings);
  }
  // The number of each head's channels that turn.
  std::int64_t rotary_channels() const {
    return static_cast<std::int64_t>(static_cast<double>(head_channels()) * rotary_fraction);
  }
  // Parameters of embeddings and blocks, without biases and norms.
  double trunk_parameters() const;
};

// Renames the rope_parameters object of transformers 5 to the fields of known_fields().
void spell_plainly(nlohmann::json& config);

}  // namespace shoal::nn
