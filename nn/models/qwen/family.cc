// Qwen2 and Qwen2.5 (Yang et al., "Qwen2 Technical Report", 2024): Llama with biases of queries,
// keys and values. Qwen3 (Yang et al., "Qwen3 Technical Report", 2025): norms of queries and keys
// instead.
#include "shoal/nn/models/decoder/family.h"

namespace shoal::nn {
namespace {

DecoderConfig qwen_defaults(const char* model_type) {
  DecoderConfig config;
  config.model_type = model_type;
  config.vocab_size = 151936;
  config.intermediate_size = 22016;
  config.num_key_value_heads = 32;
  config.max_position_embeddings = 32768;
  config.use_sliding_window = false;
  config.sliding_window = 4096;
  config.max_window_layers = 28;
  config.bos_token_id = config.eos_token_id = std::nullopt;
  return config;
}

std::vector<ConfigField> qwen_fields() {
  return llama_fields({{"use_sliding_window", &DecoderConfig::use_sliding_window},
                       {"sliding_window", &DecoderConfig::sliding_window},
                       {"max_window_layers", &DecoderConfig::max_window_layers},
                       {"layer_types", &DecoderConfig::layer_types}});
}

}  // namespace

const DecoderFamily& qwen2_family() {
  static const DecoderFamily family{.model_type = "qwen2",
                                    .title = "Qwen2",
                                    .class_prefix = "Qwen2",
                                    .query_biases = true,
                                    .defaults = qwen_defaults("qwen2"),
                                    .fields = qwen_fields()};
  return family;
}

const DecoderFamily& qwen3_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made{.model_type = "qwen3",
                       .title = "Qwen3",
                       .class_prefix = "Qwen3",
                       .query_norms = true,
                       .defaults = qwen_defaults("qwen3"),
                       .fields = qwen_fields()};
    made.defaults.head_dim = 128;
    made.fields.push_back({"attention_bias", &DecoderConfig::attention_bias});
    return made;
  }();
  return family;
}

}  // namespace shoal::nn
