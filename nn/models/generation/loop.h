// The loop that generates tokens, for any model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shoal/nn/autograd/context.h"
#include "shoal/nn/models/generation/options.h"

namespace shoal::nn {

// A model that continues a batch of texts. Each text has the same number of rows, side by side: one
// at first, later one for each of its beams or samples.
class TextRows {
 public:
  virtual ~TextRows() = default;
  // The logits [texts, V] that follow the contexts.
  virtual Tensor begin(Context& context) = 0;
  // Appends a token to each row. Returns the logits [rows, V] that follow.
  virtual Tensor append(Context& context, std::span<const std::int32_t> tokens) = 0;
  // Makes row r of the present row rows[r], and text t of the present text texts[t]; texts ascend.
  virtual void select(Context& context, std::span<const std::int64_t> rows,
                      std::span<const std::int64_t> texts) = 0;
};

// The new tokens of num_return_sequences sequences of each text. `contexts`: the ids of each text
// before the first new token.
std::vector<std::vector<std::int32_t>> generate_tokens(
    Context& context, TextRows& model, const std::vector<std::vector<std::int32_t>>& contexts,
    std::int64_t vocabulary, const GenerationOptions& options, TextNumbers numbers);

}  // namespace shoal::nn
