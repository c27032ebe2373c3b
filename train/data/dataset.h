// Where samples come from: anything with a size and a get(index).
#pragma once

#include <cstdint>
#include <vector>

namespace shoal {

// One training example. Empty vectors mean "the usual": labels as input_ids (causal language
// models shift them inside the loss), every position attended, all token types 0. A label of
// kIgnoreLabel, or a value that is NaN, takes no part in the loss.
struct Sample {
  std::vector<std::int32_t> input_ids = {};
  // As the model's head asks for: of each position (language models, tokens), one (a text's class),
  // or two (an answer's first and last position).
  std::vector<std::int32_t> labels = {};
  std::vector<std::uint8_t> attention_mask = {};  // 1: a token, 0: padding
  std::vector<std::int32_t> token_type_ids = {};
  std::vector<float> values = {};  // what a regression is to give, instead of labels
  // Where texts that do not see each other begin, ascending from 0; as many as input_ids: an empty
  // one at the end. Empty: one text.
  std::vector<std::int32_t> sequences = {};
};
inline constexpr std::int32_t kIgnoreLabel = -100;

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  // 0 <= index < size(), else invalid_argument. Any thread, any order; the same sample every time.
  virtual Sample get(std::int64_t index) const = 0;
};

}  // namespace shoal
