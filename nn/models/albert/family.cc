// ALBERT (Lan et al., "ALBERT: A Lite BERT", 2020). Layers share weights in groups, and a linear
// mapping widens a narrow embedding to hidden_size.
#include "shoal/nn/models/encoder/family.h"

#include <fmt/format.h>

#include "shoal/nn/models/config_reader.h"

namespace shoal::nn {
namespace {

void read_albert_fields(const ConfigReader& read, EncoderConfig& config) {
  read_bert_fields(read, config);
  read.integer("embedding_size", config.embedding_size);
  read.integer("num_hidden_groups", config.num_hidden_groups);
  read.integer("inner_group_num", config.inner_group_num);
  config.sequence_dropout = 0.1;
  read.number("classifier_dropout_prob", config.sequence_dropout);
  config.token_dropout = config.sequence_dropout;
}

void write_albert_fields(const EncoderConfig& config, nlohmann::ordered_json& json) {
  write_bert_fields(config, json);
  json.erase("classifier_dropout");
  json["embedding_size"] = config.embedding_size;
  json["num_hidden_groups"] = config.num_hidden_groups;
  json["inner_group_num"] = config.inner_group_num;
  json["classifier_dropout_prob"] = config.sequence_dropout;
}

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
      .read = read_albert_fields,
      .write = write_albert_fields,
      .layer = [](std::int64_t group, std::int64_t inner) {
        return fmt::format("encoder.albert_layer_groups.{}.albert_layers.{}", group, inner);
      }};
  return family;
}

}  // namespace shoal::nn
