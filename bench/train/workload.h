// A model trained on random tokens, and its figures for benchmarks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "products.h"

#include "shoal/nn/layers/chain.h"

namespace shoal::bench {

struct WorkloadOptions {
  std::int64_t batch = 4, length = 512;
  double dropout = 0;  // everywhere in the model
  bool checkpointing = false;
  std::int64_t lora_r = 0;  // if not 0, only adapters of the queries and values are trained
  // For encoders, the samples' lengths of each batch, which replace batch and length; steps take
  // the batches in turn. With `padded`, layers also compute the padding.
  std::vector<std::vector<std::int64_t>> lengths{};
  bool padded = false;
  double tokens() const;  // of a step, on average, without padding
};

struct Workload {
  std::unique_ptr<nn::Chain> model;
  float targets = 0;  // of a step; the loss is scaled by 1 / targets
  // Starts a new forward.
  std::function<nn::LossOutput(nn::Context&)> forward;
};

// gpt2, gpt2-medium, gpt2-large, gpt2-xl, llama-3.2-1b, qwen3-0.6b; t5-base, bart-base, whose
// source and target each have `length` tokens; or bert-base, bert-large, minilm (12 layers of 384),
// roberta-base, distilbert-base or albert-base, followed by -classification, -answers (questions)
// or -masked.
std::vector<std::string> workload_names();
// Reads WorkloadOptions::lengths: a batch a line, its lengths separated by spaces.
std::vector<std::vector<std::int64_t>> read_lengths(const std::string& path);
Workload make_workload(std::string_view name, const WorkloadOptions& options,
                       MemoryResource& memory);
std::vector<ProductShape> product_shapes(std::string_view name, const WorkloadOptions& options);
// Operations of attention's own products relative to product_shapes() with their gradients. Counts
// scores, probabilities · values and their four gradients once each, or half if causal.
double attention_share(std::string_view name, const WorkloadOptions& options);

}  // namespace shoal::bench
