// DistilBERT (Sanh et al., "DistilBERT, a distilled version of BERT", 2019): BERT with other names,
// and without token types and pooler.
#include "shoal/nn/models/encoder/family.h"

#include <fmt/format.h>

#include "shoal/nn/models/config_reader.h"

namespace shoal::nn {
namespace {

void read_distilbert(const ConfigReader& read, EncoderConfig& config) {
  config.token_dropout = config.hidden_dropout_prob;
  read.refuse_true("sinusoidal_pos_embds");
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
  static const EncoderFamily family{
      .model_type = "distilbert",
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
      .fields = {{"dim", &EncoderConfig::hidden_size},
                 {"n_layers", &EncoderConfig::num_hidden_layers},
                 {"n_heads", &EncoderConfig::num_attention_heads},
                 {"hidden_dim", &EncoderConfig::intermediate_size},
                 {"activation", &EncoderConfig::hidden_act},
                 {"dropout", &EncoderConfig::hidden_dropout_prob},
                 {"attention_dropout", &EncoderConfig::attention_probs_dropout_prob},
                 {"seq_classif_dropout", &EncoderConfig::sequence_dropout},
                 {"qa_dropout", &EncoderConfig::question_dropout}},
      .read = read_distilbert,
      .write = [](const EncoderConfig&,
                  nlohmann::ordered_json& json) { json["sinusoidal_pos_embds"] = false; },
      .layer = [](std::int64_t layer,
                  std::int64_t) { return fmt::format("transformer.layer.{}", layer); }};
  return family;
}

}  // namespace shoal::nn
