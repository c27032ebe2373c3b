// Models as a data-parallel step sees them: which gradients are complete after which layer.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/nn/autograd/parameter.h"

namespace shoal::bench {

struct DdpModel {
  struct Layer {
    std::string name;
    std::vector<nn::Parameter*> parameters;  // complete once this layer's backward has run
  };
  std::string name;
  std::vector<Layer> layers;               // in the order of backward
  std::vector<nn::Parameter*> parameters;  // in the order of the forward, as modules list them
  std::shared_ptr<void> owner;
};

// "gpt2": GPT-2 124M, the shapes of nn/models. Its token table is tied to the head, so its
// gradient is complete only at the end of backward.
// "albert": ALBERT-base v2 (Lan et al., ICLR 2020, table 1; 11.7M parameters, as transformers'
// AlbertModel): embeddings of 128 factorised, one layer used twelve times, whose gradients are
// complete only after the last of its uses in backward.
DdpModel make_ddp_model(std::string_view name);

}  // namespace shoal::bench
