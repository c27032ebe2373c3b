// DistilBERT (Sanh et al., "DistilBERT, a distilled version of BERT", 2019): BERT with other names,
// and without token types and pooler.
#include "shoal/nn/models/encoder/family.h"

#include <fmt/format.h>

#include "shoal/nn/models/config_reader.h"

namespace shoal::nn {
namespace {

void read_distilbert_fields(const ConfigReader& read, EncoderConfig& config) {
  read.integer("dim", config.hidden_size);
  read.integer("n_layers", config.num_hidden_layers);
  read.integer("n_heads", config.num_attention_heads);
  read.integer("hidden_dim", config.intermediate_size);
  read.text("activation", config.hidden_act);
  read.number("dropout", config.hidden_dropout_prob);
  read.number("attention_dropout", config.attention_probs_dropout_prob);
  read.number("seq_classif_dropout", config.sequence_dropout);
  read.number("qa_dropout", config.question_dropout);
  config.token_dropout = config.hidden_dropout_prob;
  read.refuse_true("sinusoidal_pos_embds");
}

void write_distilbert_fields(const EncoderConfig& config, nlohmann::ordered_json& json) {
  json["dim"] = config.hidden_size;
  json["n_layers"] = config.num_hidden_layers;
  json["n_heads"] = config.num_attention_heads;
  json["hidden_dim"] = config.intermediate_size;
  json["activation"] = config.hidden_act;
  json["dropout"] = config.hidden_dropout_prob;
  json["attention_dropout"] = config.attention_probs_dropout_prob;
  json["seq_classif_dropout"] = config.sequence_dropout;
  json["qa_dropout"] = config.question_dropout;
  json["sinusoidal_pos_embds"] = false;
}

EncoderConfig distilbert_defaults() {
  EncoderConfig config;
  config.model_type = "distilbert";
  config.num_hidden_layers = 6;
  config.type_vocab_size = 0;
  config.sequence_dropout = 0.2;
  config.question_dropout = 0.1;
  return config;
}

}  // namespace

const EncoderFamily& distilbert_family() {
  static const EncoderFamily family{.model_type = "distilbert",
                                    .class_prefix = "DistilBert",
                                    .base = "distilbert",
                                    .block = {.attention = "attention",
                                              .query = "q_lin",
                                              .key = "k_lin",
                                              .value = "v_lin",
                                              .attention_output = "out_lin",
                                              .attention_norm = "sa_layer_norm",
                                              .ffn = "ffn",
                                              .ffn_in = "lin1",
                                              .ffn_out = "lin2",
                                              .output_norm = "output_layer_norm"},
                                    .lm_dense = "vocab_transform",
                                    .lm_norm = "vocab_layer_norm",
                                    .lm_head = "vocab_projector",
                                    .pooler = "pre_classifier",
                                    .classifier = "classifier",
                                    .pooling = kernels::Activation::relu,
                                    .aliases = {},
                                    .defaults = distilbert_defaults(),
                                    .read = read_distilbert_fields,
                                    .write = write_distilbert_fields,
                                    .layer = [](std::int64_t layer, std::int64_t) {
                                      return fmt::format("transformer.layer.{}", layer);
                                    }};
  return family;
}

}  // namespace shoal::nn
