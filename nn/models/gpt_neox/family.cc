// GPT-NeoX (Black et al., "GPT-NeoX-20B", 2022) and Pythia (Biderman et al., "Pythia", 2023): one
// projection of queries, keys and values, of whose channels a part turns, and an MLP that reads
// what attention reads. docs/internals/decoders.md lists the pitfalls.
#include "shoal/nn/models/decoder/family.h"

namespace shoal::nn {
namespace {

DecoderConfig neox_defaults() {
  DecoderConfig config;
  config.model_type = "gpt_neox";
  config.vocab_size = 50432;
  config.hidden_size = 6144;
  config.intermediate_size = 24576;
  config.num_hidden_layers = 44;
  config.num_attention_heads = 64;
  config.hidden_act = "gelu";
  config.norm_eps = 1e-5;
  config.rotary_fraction = 0.25;
  config.attention_bias = config.parallel_residual = true;
  config.bos_token_id = 0;
  return config;
}

std::vector<ConfigField> neox_fields() {
  return {{"vocab_size", &DecoderConfig::vocab_size},
          {"hidden_size", &DecoderConfig::hidden_size},
          {"intermediate_size", &DecoderConfig::intermediate_size},
          {"num_hidden_layers", &DecoderConfig::num_hidden_layers},
          {"num_attention_heads", &DecoderConfig::num_attention_heads},
          {"max_position_embeddings", &DecoderConfig::max_position_embeddings},
          {"hidden_act", &DecoderConfig::hidden_act},
          {"attention_dropout", &DecoderConfig::attention_dropout},
          {"hidden_dropout", &DecoderConfig::hidden_dropout},
          {"hidden_dropout", &DecoderConfig::embedding_dropout},
          {"layer_norm_eps", &DecoderConfig::norm_eps},
          {"initializer_range", &DecoderConfig::initializer_range},
          {"rotary_pct", &DecoderConfig::rotary_fraction},
          {"rotary_emb_base", &DecoderConfig::rope_theta},
          {"attention_bias", &DecoderConfig::attention_bias},
          {"use_parallel_residual", &DecoderConfig::parallel_residual},
          {"tie_word_embeddings", &DecoderConfig::tie_word_embeddings},
          {"bos_token_id", &DecoderConfig::bos_token_id},
          {"eos_token_id", &DecoderConfig::eos_token_id},
          {"pad_token_id", &DecoderConfig::pad_token_id}};
}

}  // namespace

const DecoderFamily& gpt_neox_family() {
  static const DecoderFamily family{
      .model_type = "gpt_neox",
      .title = "GPT-NeoX",
      .class_prefix = "GPTNeoX",
      .projections = "query_key_value",
      .attention_output = "dense",
      .rms_norms = false,
      .mlp = DecoderFamily::Mlp::plain,
      .mlp_in = "dense_h_to_4h",
      .mlp_out = "dense_4h_to_h",
      .padding_is_cold = false,
      .base = "gpt_neox",
      .answers_base = "gpt_neox",
      .embedding = "embed_in",
      .dropout = "emb_dropout",
      .norm = "final_layer_norm",
      .block = {{BlockPart::attention_norm, "input_layernorm"},
                {BlockPart::mlp_norm, "post_attention_layernorm"},
                {BlockPart::attention_dropout, "post_attention_dropout"},
                {BlockPart::mlp_dropout, "post_mlp_dropout"},
                {BlockPart::attention, "attention"},
                {BlockPart::mlp, "mlp"}},
      .language_head = "embed_out",
      .token_head = "classifier",
      .buffers = {"rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"},
      .activations = {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"},
      .defaults = neox_defaults(),
      .fields = neox_fields(),
      .constants = {{"is_decoder", false}, {"use_cache", true}}};
  return family;
}

}  // namespace shoal::nn
