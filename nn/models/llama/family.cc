// Llama (Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023; Llama 2 and
// 3 with grouped key heads). docs/internals/decoders.md lists the pitfalls.
#include "shoal/nn/models/decoder/family.h"

namespace shoal::nn {

const DecoderFamily& llama_family() {
  static const DecoderFamily family = [] {
    DecoderFamily made{.model_type = "llama", .title = "Llama", .class_prefix = "Llama"};
    made.fields = llama_fields({{"attention_bias", &DecoderConfig::attention_bias},
                                {"mlp_bias", &DecoderConfig::mlp_bias}});
    return made;
  }();
  return family;
}

}  // namespace shoal::nn
