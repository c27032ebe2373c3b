// GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019), numerically
// equal to transformers' GPT2LMHeadModel. docs/internals/gpt2-numerics.md lists the pitfalls.
#include "shoal/nn/models/decoder/family.h"

#include "shoal/nn/models/gpt2/presets.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

DecoderConfig defaults() {
  DecoderConfig config;
  config.model_type = "gpt2";
  config.vocab_size = 50257;
  config.hidden_size = 768;
  config.num_hidden_layers = config.num_attention_heads = 12;
  config.intermediate_size = 0;
  config.max_position_embeddings = 1024;
  config.hidden_act = "gelu_new";
  config.norm_eps = 1e-5;
  config.embedding_dropout = config.hidden_dropout = config.attention_dropout = 0.1;
  config.tie_word_embeddings = true;
  config.bos_token_id = config.eos_token_id = 50256;
  return config;
}

std::vector<ConfigField> fields() {
  return {{"vocab_size", &DecoderConfig::vocab_size},
          {"n_positions", &DecoderConfig::max_position_embeddings},
          {"n_embd", &DecoderConfig::hidden_size},
          {"n_layer", &DecoderConfig::num_hidden_layers},
          {"n_head", &DecoderConfig::num_attention_heads},
          {"n_inner", &DecoderConfig::intermediate_size},
          {"activation_function", &DecoderConfig::hidden_act},
          {"resid_pdrop", &DecoderConfig::hidden_dropout},
          {"embd_pdrop", &DecoderConfig::embedding_dropout},
          {"attn_pdrop", &DecoderConfig::attention_dropout},
          {"layer_norm_epsilon", &DecoderConfig::norm_eps},
          {"initializer_range", &DecoderConfig::initializer_range},
          {"scale_attn_weights", &DecoderConfig::scale_attn_weights},
          {"scale_attn_by_inverse_layer_idx", &DecoderConfig::scale_attn_by_inverse_layer_idx},
          {"tie_word_embeddings", &DecoderConfig::tie_word_embeddings},
          {"bos_token_id", &DecoderConfig::bos_token_id},
          {"eos_token_id", &DecoderConfig::eos_token_id},
          {"pad_token_id", &DecoderConfig::pad_token_id}};
}

}  // namespace

const DecoderFamily& gpt2_family() {
  static const DecoderFamily family{
      .model_type = "gpt2",
      .title = "GPT-2",
      .class_prefix = "GPT2",
      .language_model = "GPT2LMHeadModel",
      .attention = DecoderFamily::Attention::fused,
      .rms_norms = false,
      .mlp = DecoderFamily::Mlp::conv1d,
      .padding_is_cold = false,
      .scaled_residual = true,
      .base = "transformer",
      .embedding = "wte",
      .positions = "wpe",
      .dropout = "drop",
      .layers = "h",
      .norm = "ln_f",
      .block = {{BlockPart::attention_norm, "ln_1"},
                {BlockPart::attention, "attn"},
                {BlockPart::mlp_norm, "ln_2"},
                {BlockPart::mlp, "mlp"},
                {BlockPart::attention_dropout, "attn.resid_dropout"},
                {BlockPart::mlp_dropout, "mlp.dropout"}},
      .token_head = "classifier",
      // Causal masks, also of cross-attention, which is not used.
      .buffers = {".attn.bias", ".attn.masked_bias", ".crossattention.bias",
                  ".crossattention.masked_bias"},
      .activations = {"gelu_new", "gelu", "gelu_pytorch_tanh"},
      .defaults = defaults(),
      .fields = fields()};
  return family;
}

DecoderConfig gpt2_preset(std::string_view name) {
  struct Preset {
    std::string_view name;
    std::int64_t layers, width, heads;
  };
  for (const Preset& preset : {Preset{"gpt2", 12, 768, 12},
                               {"gpt2-medium", 24, 1024, 16},
                               {"gpt2-large", 36, 1280, 20},
                               {"gpt2-xl", 48, 1600, 25}}) {
    if (preset.name != name) continue;
    DecoderConfig config = DecoderConfig::of("gpt2");
    config.num_hidden_layers = preset.layers;
    config.hidden_size = preset.width;
    config.num_attention_heads = preset.heads;
    return config;
  }
  throw_error(ErrorCode::invalid_argument,
              "there is no GPT-2 preset '{}'; there are gpt2, gpt2-medium, gpt2-large and gpt2-xl",
              name);
}

}  // namespace shoal::nn
