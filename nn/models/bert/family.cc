// BERT (Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2019).
#include "shoal/nn/models/encoder/family.h"

#include <fmt/format.h>

#include "shoal/nn/models/config_reader.h"

namespace shoal::nn {

std::vector<EncoderField> bert_fields(const std::vector<EncoderField>& more) {
  return joined({{"hidden_size", &EncoderConfig::hidden_size},
                 {"num_hidden_layers", &EncoderConfig::num_hidden_layers},
                 {"num_attention_heads", &EncoderConfig::num_attention_heads},
                 {"intermediate_size", &EncoderConfig::intermediate_size},
                 {"type_vocab_size", &EncoderConfig::type_vocab_size},
                 {"hidden_act", &EncoderConfig::hidden_act},
                 {"hidden_dropout_prob", &EncoderConfig::hidden_dropout_prob},
                 {"attention_probs_dropout_prob", &EncoderConfig::attention_probs_dropout_prob},
                 {"layer_norm_eps", &EncoderConfig::layer_norm_eps}},
                more);
}

void read_bert_dropout(const ConfigReader& read, EncoderConfig& config) {
  config.sequence_dropout = config.hidden_dropout_prob;
  read.number("classifier_dropout", config.sequence_dropout);
  config.token_dropout = config.sequence_dropout;
}

void write_bert_dropout(const EncoderConfig& config, nlohmann::ordered_json& json) {
  const bool own = config.sequence_dropout != config.hidden_dropout_prob;
  json["classifier_dropout"] =
      own ? nlohmann::ordered_json(config.sequence_dropout) : nlohmann::ordered_json();
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
      .read = read_bert_dropout,
      .write = write_bert_dropout,
      .layer = [](std::int64_t layer, std::int64_t) {
        return fmt::format("encoder.layer.{}", layer);
      }};
  return family;
}

}  // namespace shoal::nn
