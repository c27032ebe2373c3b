// Models for step measurements, each with a batch of random tokens in host memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shoal/nn/layers/chain.h"

namespace shoal::bench {

struct StepModelOptions {
  std::string model = "gpt2";                                        // one of step_models()
  std::int64_t layers = 0, heads = 0, channels = 0, vocabulary = 0;  // 0: the model's default
  std::int64_t batch = 8, length = 1024;
  double dropout = 0;  // applies wherever the model has dropout
};

struct StepModel {
  std::unique_ptr<nn::Chain> chain;
  // Starts a new forward.
  std::function<nn::LossOutput(nn::Context&, const nn::ChainInput&)> loss;
  std::function<void()> checkpoint_layers;
  std::int64_t layers = 0, channels = 0, vocabulary = 0;
  nn::ChainInput input;      // one microbatch, in host memory
  std::int64_t targets = 0;  // its valid targets
  // Operations of forward and backward of the microbatch: 6 for each weight and each row that it
  // multiplies, and 12 L C T per token for attention. As is customary, attention is counted in full
  // even if a causal mask removes half of it.
  double flops = 0;
  // Saves config.json and the weights in Hugging Face's format.
  std::function<void(const std::string& directory,
                     const std::function<ConstView(const nn::Parameter&)>&)>
      save;
};

// gpt2, gpt2-medium, gpt2-large, gpt2-xl; bert-base, bert-large (masked language modelling of 15 %
// of the positions, two token types); llama-1b (the shape of Llama 3.2 1B).
const std::vector<std::string>& step_models();
// `memory`: host memory for the batch.
StepModel make_step_model(const StepModelOptions& options, MemoryResource& memory);

}  // namespace shoal::bench
