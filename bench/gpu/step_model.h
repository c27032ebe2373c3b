// The models whose steps are measured, each with a batch of random tokens in host memory.
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
  std::int64_t layers = 0, heads = 0, channels = 0, vocabulary = 0;  // 0: the model's
  std::int64_t batch = 8, length = 1024;
  double dropout = 0;  // everywhere where the model has one
};

struct StepModel {
  std::unique_ptr<nn::Chain> chain;
  // Starts a new forward.
  std::function<nn::LossOutput(nn::Context&, const nn::ChainInput&)> loss;
  std::function<void()> checkpoint_layers;
  std::int64_t layers = 0, channels = 0, vocabulary = 0;
  nn::ChainInput input;      // of one microbatch, in host memory
  std::int64_t targets = 0;  // valid ones of it
  // Forward and backward of the microbatch: 6 a weight and row that it multiplies, and attention's
  // 12 L C T a token (a causal mask hides half of it, which is counted all the same, as everybody
  // does).
  double flops = 0;
  // config.json and the weights as Hugging Face has them.
  std::function<void(const std::string& directory,
                     const std::function<ConstView(const nn::Parameter&)>&)>
      save;
};

// gpt2, gpt2-medium, gpt2-large, gpt2-xl; bert-base, bert-large: masked language modelling, 15 % of
// the positions, two token types; llama-1b: Llama 3.2 1B's shape.
const std::vector<std::string>& step_models();
// `memory`: of the host, for the batch.
StepModel make_step_model(const StepModelOptions& options, MemoryResource& memory);

}  // namespace shoal::bench
