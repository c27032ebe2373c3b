// Models for the data-parallel benchmark: which gradients are complete after each layer.
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
    std::vector<nn::Parameter*> parameters;  // complete after this layer's backward
  };
  std::string name;
  std::vector<Layer> layers;               // in the order of backward
  std::vector<nn::Parameter*> parameters;  // in forward order, as modules list them
  std::shared_ptr<void> owner;
};

// "gpt2": GPT-2 124M with the shapes of nn/models. The token table is tied to the head, so its
// gradient is complete only at the end of backward.
// "albert": ALBERT-base v2 (Lan et al., ICLR 2020, table 1; 11.7M parameters, as transformers'
// AlbertModel). It has factorised embeddings of 128 and one layer used twelve times; the layer's
// gradients are complete only after its last use in backward.
DdpModel make_ddp_model(std::string_view name);

}  // namespace shoal::bench
