// The source of samples: anything with a size and a get(index).
//
//   struct Numbers final : Dataset {
//     std::int64_t size() const override { return 1000; }
//     Sample get(std::int64_t index) const override { return {.input_ids = digits(index)}; }
//   };
//   Batches batches(model, std::make_shared<Numbers>(), {.size = 8});
#pragma once

#include <cstdint>
#include <vector>

namespace shoal {

// One training example. Defaults of empty vectors: labels are input_ids (causal language models
// shift them inside the loss), every position is attended, all token types are 0. Positions or
// samples with label kIgnoreLabel or value NaN do not contribute to the loss.
struct Sample {
  std::vector<std::int32_t> input_ids = {};
  // The model's head determines the count: one per position (language models, token
  // classification), one (text classification), or two (an answer's first and last position).
  std::vector<std::int32_t> labels = {};
  std::vector<std::uint8_t> attention_mask = {};  // 1: a token, 0: padding
  std::vector<std::int32_t> token_type_ids = {};
  std::vector<float> values = {};  // regression targets, instead of labels
  // Start positions of packed texts that do not attend to each other, ascending from 0. A start
  // equal to the length of input_ids is an empty text at the end. Empty vector: one text.
  std::vector<std::int32_t> sequences = {};
};
inline constexpr std::int32_t kIgnoreLabel = -100;

// Samples by number.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  // 0 <= index < size(), else invalid_argument. Thread-safe; any order; always returns the same
  // sample.
  virtual Sample get(std::int64_t index) const = 0;
};

}  // namespace shoal
