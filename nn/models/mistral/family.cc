// Mistral (Jiang et al., "Mistral 7B", 2023): Llama with a sliding window in every layer.
#include "shoal/nn/models/decoder/family.h"

namespace shoal::nn {

const DecoderFamily& mistral_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made{
        .model_type = "mistral",
        .title = "Mistral",
        .class_prefix = "Mistral",
        .answers_base = "model",
        .fields = llama_fields({{"sliding_window", &DecoderConfig::sliding_window}})};
    DecoderConfig& config = made.defaults;
    config.model_type = "mistral";
    config.intermediate_size = 14336;
    config.num_key_value_heads = 8;
    config.max_position_embeddings = 131072;
    config.sliding_window = 4096;
    return made;
  }();
  return family;
}

}  // namespace shoal::nn
