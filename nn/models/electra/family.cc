// ELECTRA (Clark et al., "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than
// Generators", 2020): BERT's blocks with a narrow embedding and heads of its own. Masked language
// modelling is the generator's head.
#include "shoal/nn/models/encoder/family.h"

namespace shoal::nn {

const EncoderFamily& electra_family() {
  static const EncoderFamily family = [] {
    EncoderFamily made = bert_family();
    made.model_type = made.base = made.defaults.model_type = "electra";
    made.class_prefix = "Electra";
    made.mapping = "embeddings_project";
    made.maps_equal = false;
    made.lm_dense = "generator_predictions.dense";
    made.lm_norm = "generator_predictions.LayerNorm";
    made.lm_head = "generator_lm_head";
    made.lm_decoder = "weight";
    made.lm_gelu = true;
    made.pooler = "classifier.dense";
    made.classifier = "classifier.out_proj";
    made.pooling = kernels::Activation::gelu_erf;
    made.drops_before_pooler = true;
    made.aliases = {};
    made.defaults.embedding_size = 128;
    made.defaults.hidden_size = 256;
    made.defaults.num_attention_heads = 4;
    made.defaults.intermediate_size = 1024;
    made.fields.push_back({"embedding_size", &EncoderConfig::embedding_size});
    return made;
  }();
  return family;
}

}  // namespace shoal::nn
