// ALBERT (Lan et al., "ALBERT: A Lite BERT", 2020). Layers share weights in groups, and a linear
// mapping widens a narrow embedding to hidden_size.
#include "shoal/nn/models/encoder/family.h"

#include <fmt/format.h>

#include "shoal/nn/models/config_reader.h"

namespace shoal::nn {
namespace {

EncoderConfig albert_defaults() {
  EncoderConfig config;
  config.model_type = "albert";
  config.vocab_size = 30000;
  config.embedding_size = 128;
  config.hidden_size = 4096;
  config.num_hidden_groups = 1;
  config.num_attention_heads = 64;
  config.intermediate_size = 16384;
  config.hidden_act = "gelu_new";
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
  return config;
}

}  // namespace

const EncoderFamily& albert_family() {
  static const EncoderFamily family{
      .model_type = "albert",
      .class_prefix = "Albert",
      .base = "albert",
      .mapping = "encoder.embedding_hidden_mapping_in",
      .block = {.attention = "attention",
                .query = "query",
                .key = "key",
                .value = "value",
                .attention_output = "dense",
                .attention_norm = "attention.LayerNorm",
                .ffn = "",
                .ffn_in = "ffn",
                .ffn_out = "ffn_output",
                .output_norm = "full_layer_layer_norm"},
      .lm_dense = "predictions.dense",
      .lm_norm = "predictions.LayerNorm",
      .lm_head = "predictions",
      .lm_decoder = "decoder.weight",
      .pooler = "albert.pooler",
      .classifier = "classifier",
      .ffn_drops = false,
      .aliases = {{"predictions.bias", "predictions.decoder.bias"}},
      .defaults = albert_defaults(),
      .fields = bert_fields({{"embedding_size", &EncoderConfig::embedding_size},
                             {"num_hidden_groups", &EncoderConfig::num_hidden_groups},
                             {"inner_group_num", &EncoderConfig::inner_group_num},
                             {"classifier_dropout_prob", &EncoderConfig::sequence_dropout}}),
      .read = [](const ConfigReader&,
                 EncoderConfig& config) { config.token_dropout = config.sequence_dropout; },
      .layer =
          [](std::int64_t group, std::int64_t inner) {
            return fmt::format("encoder.albert_layer_groups.{}.albert_layers.{}", group, inner);
          }};
  return family;
}

}  // namespace shoal::nn
