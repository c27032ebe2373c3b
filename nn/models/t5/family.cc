// T5 (Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
// Transformer", 2020), T5 1.1 and Flan-T5 (gated GELU, a head with its own weight).
#include "shoal/nn/models/encoder_decoder/family.h"

namespace shoal::nn {
namespace {

EncoderDecoderConfig t5_defaults() {
  EncoderDecoderConfig config;
  config.model_type = "t5";
  config.vocab_size = 32128;
  config.d_model = 512;
  config.encoder_layers = 6;
  config.encoder_heads = 8;
  config.encoder_inner = 2048;
  config.head_dim = 64;
  config.activation = "relu";
  config.norm_eps = 1e-6;
  config.initializer = 1;
  config.pad_token_id = 0;
  config.eos_token_id = 1;
  config.bos_token_id = config.decoder_start_token_id = config.forced_eos_token_id = std::nullopt;
  return config;
}

}  // namespace

const EncoderDecoderFamily& t5_family() {
  using Config = EncoderDecoderConfig;
  static const EncoderDecoderFamily family{
      .model_type = "t5",
      .title = "T5",
      .class_prefix = "T5",
      .heads = {{DecoderHead::sequence_classification, "transformer"},
                {DecoderHead::question_answering, ""},
                {DecoderHead::token_classification, "transformer", false}},
      .rms_norms = true,
      .pre_norm = true,
      .embedding_norm = false,
      .relative_positions = true,
      .biases = false,
      .scaled_scores = false,
      .drops_states = true,
      .one_dropout = true,
      .padding_is_cold = false,
      .scales_tied_head = true,
      .scales_initializer = true,
      .base = "",
      .layers = "block",
      .last_norm = "final_layer_norm",
      .encoder = {"layer.0.SelfAttention", "layer.0.layer_norm", "", "", "layer.1.DenseReluDense",
                  "layer.1.layer_norm"},
      .decoder = {"layer.0.SelfAttention", "layer.0.layer_norm", "layer.1.EncDecAttention",
                  "layer.1.layer_norm", "layer.2.DenseReluDense", "layer.2.layer_norm"},
      .query = "q",
      .key = "k",
      .value = "v",
      .output = "o",
      .mlp_in = "wi",
      .gated_in = "wi_0",
      .gate = "wi_1",
      .mlp_out = "wo",
      .relative = "layer.0.SelfAttention.relative_attention_bias",
      .logits_bias = "",
      .activations = {"relu", "gelu", "gated-gelu", "gated-relu"},
      .defaults = t5_defaults(),
      .fields = {{"vocab_size", &Config::vocab_size},
                 {"d_model", &Config::d_model},
                 {"d_kv", &Config::head_dim},
                 {"d_ff", &Config::encoder_inner},
                 {"num_layers", &Config::encoder_layers},
                 {"num_decoder_layers", &Config::decoder_layers},
                 {"num_heads", &Config::encoder_heads},
                 {"relative_attention_num_buckets", &Config::relative_buckets},
                 {"relative_attention_max_distance", &Config::relative_distance},
                 {"dropout_rate", &Config::dropout},
                 {"classifier_dropout", &Config::classifier_dropout},
                 {"layer_norm_epsilon", &Config::norm_eps},
                 {"initializer_factor", &Config::initializer},
                 {"feed_forward_proj", &Config::activation},
                 {"tie_word_embeddings", &Config::tie_word_embeddings},
                 {"pad_token_id", &Config::pad_token_id},
                 {"eos_token_id", &Config::eos_token_id},
                 {"decoder_start_token_id", &Config::decoder_start_token_id}}};
  return family;
}

}  // namespace shoal::nn
