// Where samples come from: anything with a size and a get(index).
#pragma once

#include <cstdint>
#include <vector>

namespace shoal {

// One training example. Empty vectors mean "the usual": labels as input_ids (causal language
// models shift them inside the loss), every position attended, all token types 0. A label of
// kIgnoreLabel takes no part in the loss.
struct Sample {
  std::vector<std::int32_t> input_ids = {};
  std::vector<std::int32_t> labels = {};
  std::vector<std::uint8_t> attention_mask = {};  // 1: a token, 0: padding
  std::vector<std::int32_t> token_type_ids = {};
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
