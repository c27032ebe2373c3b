// Configuration of BERT and its relatives, which share one encoder. Fields have
// BERT's names. Each family.cc maps them to the family's own names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace shoal::nn {

// The task of a model's head, with its targets (ChainInput::targets):
enum class EncoderTask : std::uint8_t {
  masked_lm,                // i32 [B, T]: original tokens at masked positions
  sequence_classification,  // i32 [B]; regression(): f32 [B, labels], NaN: none
  question_answering,       // i32 [B, 2]: positions of the answer's first and last token
  token_classification,     // i32 [B, T]
};
std::string_view to_string(EncoderTask task);

struct EncoderConfig {
  std::string model_type = "bert";
  std::int64_t vocab_size = 30522, hidden_size = 768, num_hidden_layers = 12;
  std::int64_t num_attention_heads = 12, intermediate_size = 3072;
  std::int64_t max_position_embeddings = 512;
  std::int64_t type_vocab_size = 2;    // 0: no token types (DistilBERT)
  std::int64_t embedding_size = 0;     // 0: hidden_size; else a linear mapping follows (ALBERT)
  std::int64_t num_hidden_groups = 0;  // 0: each layer has its own weights; else shared (ALBERT)
  std::int64_t inner_group_num = 1;    // blocks per layer
  std::string hidden_act = "gelu";     // GELU by erf; or gelu_new, gelu_pytorch_tanh, relu
  // Biases of norms, attention, MLP, the heads' first layer, and the decoder.
  bool norm_bias = true, attention_bias = true, mlp_bias = true;
  bool head_bias = true, decoder_bias = true;
  std::string head_act{};       // activation of the heads' first layer; empty: hidden_act
  std::string pooling = "cls";  // of sequence classification: the first state, or "mean"
  // Rotary positions, and windows of local_attention / 2 positions to each side in all layers but
  // every global_every-th, or in those that layer_types names.
  double rope_theta = 0, rope_local_theta = 0;
  std::int64_t local_attention = 0, global_every = 1;
  std::vector<std::string> layer_types{};
  double hidden_dropout_prob = 0.1, attention_probs_dropout_prob = 0.1, mlp_dropout = 0;
  // Dropout before the last layer of each head.
  double sequence_dropout = 0.1, token_dropout = 0.1, question_dropout = 0;
  double layer_norm_eps = 1e-12, initializer_range = 0.02;
  std::optional<std::int64_t> pad_token_id = 0;
  bool tie_word_embeddings = true;
  std::int64_t num_labels = 2;
  std::string problem_type{};  // empty: derived from num_labels
  std::string source{};        // text of the config.json that was read; empty: none

  // Defaults of the family.
  static EncoderConfig of(std::string_view model_type);
  // Errors name the file `name`. Throws on an unknown model_type, a field of the wrong type, or a
  // value that changes the results in a way that Shoal does not implement; the error names it.
  static EncoderConfig from_json(const nlohmann::json& json, std::string_view name);
  static EncoderConfig from_file(const std::string& path);
  // All fields that the model knows.
  nlohmann::ordered_json known_fields() const;
  // config.json as transformers writes it for the task's class: `source` with changes applied.
  // `dtype`: dtype of the saved tensors ("float32").
  nlohmann::ordered_json to_json(EncoderTask task, std::string_view dtype) const;

  void check() const;  // throws invalid_argument on impossible sizes, naming them
  // Parameters of embeddings and blocks, without biases and norms.
  double trunk_parameters() const;
  std::int64_t embedding() const { return embedding_size > 0 ? embedding_size : hidden_size; }
  bool slides(std::int64_t layer) const;          // the layer has a window
  std::int64_t window(std::int64_t layer) const;  // AttentionShape::window
  bool regression() const;  // the targets of a sequence are numbers, not classes
};

}  // namespace shoal::nn
