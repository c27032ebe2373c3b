// Gemma (Gemma Team, "Gemma: Open Models Based on Gemini Research and Technology", 2024): Llama
// with scaled embeddings, norms by 1 + weight, and gated GELU. Gemma 2 (Gemma Team, "Gemma 2:
// Improving Open Language Models at a Practical Size", 2024): also norms of each sub-layer's
// result, windows in every second layer, and soft caps of scores and logits. Gemma 3's text models
// (Gemma Team, "Gemma 3 Technical Report", 2025): without the caps, but with norms of queries and
// keys, and with windows in five of six layers, whose positions have a base of their own.
// docs/internals/decoders.md lists the pitfalls.
#include "shoal/nn/models/decoder/family.h"

namespace shoal::nn {
namespace {

DecoderConfig gemma_defaults(const char* model_type) {
  DecoderConfig config;
  config.model_type = model_type;
  config.head_dim = 256;
  config.hidden_act = "gelu_pytorch_tanh";
  config.tie_word_embeddings = true;
  config.bos_token_id = 2;
  config.eos_token_id = 1;
  config.pad_token_id = 0;
  return config;
}

DecoderFamily gemma_like(const char* model_type) {
  return {.model_type = model_type,
          .title = "Gemma",
          .class_prefix = "Gemma",
          .absent_heads = {DecoderHead::question_answering},
          .norm_offset = 1,
          .scaled_embedding = true,
          .answers_base = "model",
          .activations = {"gelu_pytorch_tanh", "gelu"},
          .gelu = kernels::Activation::gelu_tanh,  // the first published files say "gelu"
          .defaults = gemma_defaults(model_type),
          .fields = llama_fields({{"attention_bias", &DecoderConfig::attention_bias}})};
}

// What Gemma 2 and 3 have in common.
DecoderFamily gemma_with_windows(const char* model_type, const char* title, const char* prefix) {
  DecoderFamily made = gemma_like(model_type);
  made.title = title;
  made.class_prefix = prefix;
  made.activations = {"gelu_pytorch_tanh"};
  made.block = {{BlockPart::attention, "self_attn"},
                {BlockPart::mlp, "mlp"},
                {BlockPart::attention_norm, "input_layernorm"},
                {BlockPart::attention_output_norm, "post_attention_layernorm"},
                {BlockPart::mlp_norm, "pre_feedforward_layernorm"},
                {BlockPart::mlp_output_norm, "post_feedforward_layernorm"}};
  std::erase_if(made.fields, [](const ConfigField& field) { return field.name == "hidden_act"; });
  made.fields.insert(made.fields.end(),
                     {{"hidden_activation", &DecoderConfig::hidden_act},
                      {"query_pre_attn_scalar", &DecoderConfig::query_pre_attn_scalar},
                      {"sliding_window", &DecoderConfig::sliding_window},
                      {"layer_types", &DecoderConfig::layer_types}});
  DecoderConfig& config = made.defaults;
  config.hidden_size = 2304;
  config.intermediate_size = 9216;
  config.num_hidden_layers = 26;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.query_pre_attn_scalar = 256;
  config.sliding_window = 4096;
  return made;
}

}  // namespace

const DecoderFamily& gemma_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made = gemma_like("gemma");
    DecoderConfig& config = made.defaults;
    config.vocab_size = 256000;
    config.hidden_size = 3072;
    config.intermediate_size = 24576;
    config.num_hidden_layers = 28;
    config.num_attention_heads = config.num_key_value_heads = 16;
    config.max_position_embeddings = 8192;
    return made;
  }();
  return family;
}

const DecoderFamily& gemma2_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made = gemma_with_windows("gemma2", "Gemma 2", "Gemma2");
    made.fields.push_back({"attn_logit_softcapping", &DecoderConfig::attention_soft_cap});
    made.fields.push_back({"final_logit_softcapping", &DecoderConfig::logit_soft_cap});
    DecoderConfig& config = made.defaults;
    config.vocab_size = 256000;
    config.max_position_embeddings = 8192;
    config.sliding_window_pattern = 2;
    config.attention_soft_cap = 50;
    config.logit_soft_cap = 30;
    return made;
  }();
  return family;
}

const DecoderFamily& gemma3_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made = gemma_with_windows("gemma3_text", "Gemma 3", "Gemma3Text");
    made.language_model = "Gemma3ForCausalLM";
    made.absent_heads.push_back(DecoderHead::token_classification);
    made.query_norms = true;
    made.fields.push_back({"rope_local_base_freq", &DecoderConfig::rope_local_theta});
    made.fields.push_back({"sliding_window_pattern", &DecoderConfig::sliding_window_pattern});
    DecoderConfig& config = made.defaults;
    config.vocab_size = 262208;
    config.max_position_embeddings = 131072;
    config.rope_theta = 1e6;
    config.rope_local_theta = 1e4;
    config.sliding_window_pattern = 6;
    return made;
  }();
  return family;
}

}  // namespace shoal::nn
