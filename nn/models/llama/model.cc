#include "shoal/nn/models/llama/model.h"

namespace shoal::nn {

Llama::Llama(const LlamaConfig& config)
    : model(*this, "model", std::make_unique<LlamaTrunk>(config)),
      lm_head(*this, "lm_head", make_head(*model, model->embed_tokens->weight())) {
  name_tree();
}

}  // namespace shoal::nn
