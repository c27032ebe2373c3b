// RoBERTa (Liu et al., "RoBERTa: A Robustly Optimized BERT Pretraining Approach", 2019): BERT's
// blocks with its own heads. Positions count from the padding id. XLM-RoBERTa (Conneau et al.,
// "Unsupervised Cross-lingual Representation Learning at Scale", 2020) differs in its vocabulary.
#include "shoal/nn/models/encoder/family.h"

namespace shoal::nn {

const EncoderFamily& roberta_family() {
  static const EncoderFamily family = [] {
    EncoderFamily made = bert_family();
    made.model_type = made.base = "roberta";
    made.class_prefix = "Roberta";
    made.lm_dense = "lm_head.dense";
    made.lm_norm = "lm_head.layer_norm";
    made.lm_head = "lm_head";
    made.lm_gelu = true;
    made.pooler = "classifier.dense";
    made.classifier = "classifier.out_proj";
    made.drops_before_pooler = true;
    made.positions_from_ids = true;
    made.aliases = {{"lm_head.bias", "lm_head.decoder.bias"}};
    made.defaults.model_type = "roberta";
    made.defaults.vocab_size = 50265;
    made.defaults.pad_token_id = 1;
    return made;
  }();
  return family;
}

const EncoderFamily& xlm_roberta_family() {
  static const EncoderFamily family = [] {
    EncoderFamily made = roberta_family();
    made.model_type = made.defaults.model_type = "xlm-roberta";
    made.class_prefix = "XLMRoberta";
    made.defaults.vocab_size = 30522;  // the class's default; published models have 250002
    return made;
  }();
  return family;
}

}  // namespace shoal::nn
