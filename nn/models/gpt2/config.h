// GPT-2's configuration: Hugging Face's GPT2Config, with the same names and defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/models/decoder_config.h"

namespace shoal::nn {

struct Gpt2Config {
  std::int64_t vocab_size = 50257, n_positions = 1024, n_embd = 768, n_layer = 12, n_head = 12;
  std::int64_t n_inner = 0;                      // 0: 4 × n_embd (null in config.json)
  std::string activation_function = "gelu_new";  // or gelu (erf), gelu_pytorch_tanh
  double resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5, initializer_range = 0.02;
  bool scale_attn_weights = true;                // scores / sqrt(head size)
  bool scale_attn_by_inverse_layer_idx = false;  // also / (layer + 1)
  bool tie_word_embeddings = true;
  std::optional<std::int64_t> bos_token_id = 50256, eos_token_id = 50256, pad_token_id;
  DecoderLabels labels{};
  std::string source{};  // text of the config.json that was read; empty: none

  // "gpt2" (124M), "gpt2-medium" (355M), "gpt2-large" (774M), "gpt2-xl" (1.5B).
  static Gpt2Config preset(std::string_view name);
  // Errors name the file `name`. Throws on a field of the wrong type, another model_type, or a
  // value that changes the results in a way that Shoal does not implement (activation_function,
  // add_cross_attention, quantization_config ...). Ignores fields without effect.
  static Gpt2Config from_json(const nlohmann::json& json, std::string_view name);
  static Gpt2Config from_file(const std::string& path);
  // All fields that the model knows.
  nlohmann::ordered_json known_fields(DecoderHead head) const;
  // config.json as transformers writes it for the head's class: `source` with changes applied.
  // `dtype`: dtype of the saved tensors ("float32").
  nlohmann::ordered_json to_json(std::string_view dtype,
                                 DecoderHead head = DecoderHead::causal_lm) const;

  void check() const;  // throws invalid_argument on impossible sizes, naming them
  std::int64_t inner() const { return n_inner > 0 ? n_inner : 4 * n_embd; }
  // Parameters of embeddings and blocks, without biases and norms.
  double trunk_parameters() const;
  std::int64_t parameter_count() const;  // counts tied weights once
};

}  // namespace shoal::nn
