// BERT (Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2019).
#include "shoal/nn/models/encoder/family.h"

#include <fmt/format.h>

#include "shoal/nn/models/config_reader.h"

namespace shoal::nn {

void read_bert_fields(const ConfigReader& read, EncoderConfig& config) {
  read.integer("hidden_size", config.hidden_size);
  read.integer("num_hidden_layers", config.num_hidden_layers);
  read.integer("num_attention_heads", config.num_attention_heads);
  read.integer("intermediate_size", config.intermediate_size);
  read.integer("type_vocab_size", config.type_vocab_size);
  read.text("hidden_act", config.hidden_act);
  read.number("hidden_dropout_prob", config.hidden_dropout_prob);
  read.number("attention_probs_dropout_prob", config.attention_probs_dropout_prob);
  read.number("layer_norm_eps", config.layer_norm_eps);
  config.sequence_dropout = config.hidden_dropout_prob;
  read.number("classifier_dropout", config.sequence_dropout);
  config.token_dropout = config.sequence_dropout;
}

void write_bert_fields(const EncoderConfig& config, nlohmann::ordered_json& json) {
  json["hidden_size"] = config.hidden_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["intermediate_size"] = config.intermediate_size;
  json["type_vocab_size"] = config.type_vocab_size;
  json["hidden_act"] = config.hidden_act;
  json["hidden_dropout_prob"] = config.hidden_dropout_prob;
  json["attention_probs_dropout_prob"] = config.attention_probs_dropout_prob;
  json["layer_norm_eps"] = config.layer_norm_eps;
  json["classifier_dropout"] = config.sequence_dropout == config.hidden_dropout_prob
                                   ? nlohmann::ordered_json()
                                   : nlohmann::ordered_json(config.sequence_dropout);
}

const EncoderFamily& bert_family() {
  static const EncoderFamily family{
      .model_type = "bert",
      .class_prefix = "Bert",
      .base = "bert",
      .block = {.attention = "attention",
                .query = "self.query",
                .key = "self.key",
                .value = "self.value",
                .attention_output = "output.dense",
                .attention_norm = "attention.output.LayerNorm",
                .ffn = "",
                .ffn_in = "intermediate.dense",
                .ffn_out = "output.dense",
                .output_norm = "output.LayerNorm"},
      .lm_dense = "cls.predictions.transform.dense",
      .lm_norm = "cls.predictions.transform.LayerNorm",
      .lm_head = "cls.predictions",
      .lm_decoder = "decoder.weight",
      .pooler = "bert.pooler.dense",
      .classifier = "classifier",
      .aliases = {{"cls.predictions.bias", "cls.predictions.decoder.bias"}},
      .defaults = {},
      .read = read_bert_fields,
      .write = write_bert_fields,
      .layer = [](std::int64_t layer, std::int64_t) {
        return fmt::format("encoder.layer.{}", layer);
      }};
  return family;
}

}  // namespace shoal::nn
