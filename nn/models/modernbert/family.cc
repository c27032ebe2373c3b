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

void read_modernbert_fields(const ConfigReader& read, EncoderConfig& config) {
  read.integer("hidden_size", config.hidden_size);
  read.integer("num_hidden_layers", config.num_hidden_layers);
  read.integer("num_attention_heads", config.num_attention_heads);
  read.integer("intermediate_size", config.intermediate_size);
  read.text("hidden_activation", config.hidden_act);
  read.number("norm_eps", config.layer_norm_eps);
  read.boolean("norm_bias", config.norm_bias);
  read.boolean("attention_bias", config.attention_bias);
  read.boolean("mlp_bias", config.mlp_bias);
  read.boolean("classifier_bias", config.head_bias);
  read.boolean("decoder_bias", config.decoder_bias);
  read.text("classifier_pooling", config.pooling);
  read.text("classifier_activation", config.head_act);
  read.number("embedding_dropout", config.hidden_dropout_prob);
  read.number("attention_dropout", config.attention_probs_dropout_prob);
  read.number("mlp_dropout", config.mlp_dropout);
  read.number("classifier_dropout", config.sequence_dropout);
  config.token_dropout = config.question_dropout = config.sequence_dropout;
  read.integer("local_attention", config.local_attention);
  read.integer("global_attn_every_n_layers", config.global_every);
  read.list("layer_types", config.layer_types);
  read.number("global_rope_theta", config.rope_theta);
  read.number("local_rope_theta", config.rope_local_theta);
  read.refuse_filled("rope_scaling");
  if (const nlohmann::json* const bases = read.find("rope_parameters")) {
    const ConfigReader all(*bases, "rope_parameters");
    read_base(all, "full_attention", config.rope_theta);
    read_base(all, "sliding_attention", config.rope_local_theta);
  }
}

void write_modernbert_fields(const EncoderConfig& config, nlohmann::ordered_json& json) {
  json["hidden_size"] = config.hidden_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["intermediate_size"] = config.intermediate_size;
  json["hidden_activation"] = config.hidden_act;
  json["norm_eps"] = config.layer_norm_eps;
  json["norm_bias"] = config.norm_bias;
  json["attention_bias"] = config.attention_bias;
  json["mlp_bias"] = config.mlp_bias;
  json["classifier_bias"] = config.head_bias;
  json["decoder_bias"] = config.decoder_bias;
  json["classifier_pooling"] = config.pooling;
  json["classifier_activation"] = config.head_act;
  json["embedding_dropout"] = config.hidden_dropout_prob;
  json["attention_dropout"] = config.attention_probs_dropout_prob;
  json["mlp_dropout"] = config.mlp_dropout;
  json["classifier_dropout"] = config.sequence_dropout;
  json["local_attention"] = config.local_attention;
  json["global_attn_every_n_layers"] = config.global_every;
  if (!config.layer_types.empty()) json["layer_types"] = config.layer_types;
  json["global_rope_theta"] = config.rope_theta;
  json["local_rope_theta"] = config.rope_local_theta;
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
      .read = read_modernbert_fields,
      .write = write_modernbert_fields,
      .layer = [](std::int64_t layer, std::int64_t) { return fmt::format("layers.{}", layer); }};
  return family;
}

}  // namespace shoal::nn
