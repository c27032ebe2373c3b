// Configuration of the encoder-decoders (T5, BART), which share one model. Fields have BART's
// names. Each family's family.cc maps them to the family's own names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "shoal/kernels/activation.h"
#include "shoal/nn/models/decoder/labels.h"

namespace shoal::nn {

struct EncoderDecoderFamily;

struct EncoderDecoderConfig {
  std::string model_type = "bart";
  std::int64_t vocab_size = 50265, d_model = 1024;
  std::int64_t encoder_layers = 12, encoder_heads = 16, encoder_inner = 4096;
  // Absent: the encoder's.
  std::optional<std::int64_t> decoder_layers{}, decoder_heads{}, decoder_inner{};
  std::int64_t head_dim = 0;  // 0: d_model / heads
  std::int64_t max_position_embeddings = 1024;
  // Buckets of relative positions, and the distance that the last one begins with (T5).
  std::int64_t relative_buckets = 32, relative_distance = 128;
  std::string activation = "gelu";  // as a name of transformers; T5: gated-gelu, relu ...
  double dropout = 0.1, attention_dropout = 0, activation_dropout = 0;
  double classifier_dropout = 0;  // of the states that classifiers read
  double norm_eps = 1e-5;
  double initializer = 0.02;        // standard deviation of weights; T5: a factor of it
  bool scale_embedding = false;     // embeddings · sqrt(d_model)
  bool tie_word_embeddings = true;  // false: the head has its own weight
  std::optional<std::int64_t> pad_token_id = 1, bos_token_id = 0, eos_token_id = 2,
                              decoder_start_token_id = 2, forced_bos_token_id{},
                              forced_eos_token_id = 2;
  DecoderLabels labels{};  // of heads other than the language model's
  std::string source{};    // text of the config.json that was read; empty: none

  static EncoderDecoderConfig of(std::string_view model_type);  // the family's defaults
  // Errors name the file `name`. Throws on an unknown model_type, a field of the wrong type, or a
  // value that changes the results in a way that Shoal does not implement. Ignores fields without
  // effect.
  static EncoderDecoderConfig from_json(const nlohmann::json& json, std::string_view name);
  static EncoderDecoderConfig from_file(const std::string& path);
  // All fields that the model knows, with the family's names.
  nlohmann::ordered_json known_fields(DecoderHead head = DecoderHead::causal_lm) const;
  // config.json as transformers writes it for the head's class: `source` with changes applied.
  // `dtype`: dtype of the saved tensors ("float32").
  nlohmann::ordered_json to_json(std::string_view dtype,
                                 DecoderHead head = DecoderHead::causal_lm) const;

  const EncoderDecoderFamily& family() const;  // throws invalid_argument on an unknown model_type
  void check() const;  // throws invalid_argument on impossible values, naming them
  bool gated() const { return activation.starts_with("gated-"); }
  kernels::Activation activation_function() const;
  std::int64_t layers(bool decoder) const {
    return decoder ? decoder_layers.value_or(encoder_layers) : encoder_layers;
  }
  std::int64_t heads(bool decoder) const {
    return decoder ? decoder_heads.value_or(encoder_heads) : encoder_heads;
  }
  std::int64_t inner(bool decoder) const {
    return decoder ? decoder_inner.value_or(encoder_inner) : encoder_inner;
  }
  std::int64_t head_channels(bool decoder) const {
    return head_dim > 0 ? head_dim : d_model / heads(decoder);
  }
  // The id that begins every sequence of the decoder.
  std::int64_t start_id() const {
    return decoder_start_token_id.value_or(pad_token_id.value_or(0));
  }
  // Parameters of embeddings and blocks, without biases and norms.
  double trunk_parameters() const;
};

}  // namespace shoal::nn
