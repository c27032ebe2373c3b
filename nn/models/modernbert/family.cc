// ModernBERT (Warner et al., "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder",
// 2024): norms without biases before each branch, rotary positions, windows to both sides in two of
// three layers, whose positions have a base of their own, gated GELU, and one projection of
// queries, keys and values. docs/internals/encoder-numerics.md lists the pitfalls.
#include "shoal/nn/models/encoder/family.h"

#include <fmt/format.h>

#include "shoal/nn/models/config_reader.h"
#include "shoal/nn/models/decoder/rotary.h"

namespace shoal::nn {
namespace {

// The base of one kind of layers, in transformers 5's rope_parameters.
void read_base(const ConfigReader& all, const char* kind, double& theta) {
  const nlohmann::json* const object = all.find(kind);
  if (object == nullptr) return;
  RopeScaling scaling;
  scaling.read(*object, fmt::format("rope_parameters, {}", kind), theta);
  if (scaling.rope_type != "default")
    all.fail(fmt::format("scales the positions of {}, which is not supported", kind));
}

std::vector<EncoderField> modernbert_fields() {
  return {{"hidden_size", &EncoderConfig::hidden_size},
          {"num_hidden_layers", &EncoderConfig::num_hidden_layers},
          {"num_attention_heads", &EncoderConfig::num_attention_heads},
          {"intermediate_size", &EncoderConfig::intermediate_size},
          {"hidden_activation", &EncoderConfig::hidden_act},
          {"norm_eps", &EncoderConfig::layer_norm_eps},
          {"norm_bias", &EncoderConfig::norm_bias},
          {"attention_bias", &EncoderConfig::attention_bias},
          {"mlp_bias", &EncoderConfig::mlp_bias},
          {"classifier_bias", &EncoderConfig::head_bias},
          {"decoder_bias", &EncoderConfig::decoder_bias},
          {"classifier_pooling", &EncoderConfig::pooling},
          {"classifier_activation", &EncoderConfig::head_act},
          {"embedding_dropout", &EncoderConfig::hidden_dropout_prob},
          {"attention_dropout", &EncoderConfig::attention_probs_dropout_prob},
          {"mlp_dropout", &EncoderConfig::mlp_dropout},
          {"classifier_dropout", &EncoderConfig::sequence_dropout},
          {"local_attention", &EncoderConfig::local_attention},
          {"global_attn_every_n_layers", &EncoderConfig::global_every},
          {"layer_types", &EncoderConfig::layer_types},
          {"global_rope_theta", &EncoderConfig::rope_theta},
          {"local_rope_theta", &EncoderConfig::rope_local_theta}};
}

void read_modernbert(const ConfigReader& read, EncoderConfig& config) {
  config.token_dropout = config.question_dropout = config.sequence_dropout;
  read.refuse_filled("rope_scaling");
  const nlohmann::json* const bases = read.find("rope_parameters");
  if (bases == nullptr) return;
  const ConfigReader all(*bases, "rope_parameters");
  read_base(all, "full_attention", config.rope_theta);
  read_base(all, "sliding_attention", config.rope_local_theta);
}

EncoderConfig modernbert_defaults() {
  EncoderConfig config;
  config.model_type = "modernbert";
  config.vocab_size = 50368;
  config.num_hidden_layers = 22;
  config.intermediate_size = 1152;
  config.max_position_embeddings = 8192;
  config.type_vocab_size = 0;
  config.head_act = "gelu";
  config.norm_bias = config.attention_bias = config.mlp_bias = config.head_bias = false;
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
  config.sequence_dropout = config.token_dropout = 0;
  config.layer_norm_eps = 1e-5;
  config.pad_token_id = 50283;
  config.rope_theta = 160'000;
  config.rope_local_theta = 10'000;
  config.local_attention = 128;
  config.global_every = 3;
  return config;
}

}  // namespace

const EncoderFamily& modernbert_family() {
  static const EncoderFamily family{
      .model_type = "modernbert",
      .class_prefix = "ModernBert",
      .base = "model",
      .block = {.attention = "attn",
                .query = "Wqkv",
                .key = "",
                .value = "",
                .attention_output = "Wo",
                .attention_norm = "attn_norm",
                .ffn = "mlp",
                .ffn_in = "Wi",
                .ffn_out = "Wo",
                .output_norm = "mlp_norm"},
      .words = "embeddings.tok_embeddings",
      .embedding_norm = "embeddings.norm",
      .rotary = true,
      .norms_first = true,
      .final_norm = "final_norm",
      .gated = true,
      .scaled_residual = true,
      .lm_dense = "head.dense",
      .lm_norm = "head.norm",
      .lm_head = "decoder",
      .transforms_states = true,
      .pooler = "head.dense",
      .classifier = "classifier",
      .answers = "classifier",
      .ffn_drops = false,
      .aliases = {},
      .defaults = modernbert_defaults(),
      .fields = modernbert_fields(),
      .read = read_modernbert,
      .layer = [](std::int64_t layer, std::int64_t) { return fmt::format("layers.{}", layer); }};
  return family;
}

}  // namespace shoal::nn
