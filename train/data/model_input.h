// Turns texts into a model's input: encodes them without special tokens, truncates them on the
// right as Hugging Face `tokenizers` does, and applies the tokenizer's template.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shoal/train/data/dataset.h"
#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// Text tokens that fit into max_length beside the template's special tokens. invalid_argument: none
// fit.
std::int64_t room_for_text(const SequenceTemplate& sequence, bool of_pair, std::int64_t max_length);

// Lengths of two texts truncated to `room` tokens ("longest_first"). The longer text shrinks first;
// once both are equal, they shrink together. The longer text keeps an odd token; of equal texts,
// the second does.
struct PairLengths {
  std::int64_t first = 0, second = 0;
  friend bool operator==(const PairLengths&, const PairLengths&) = default;
};
PairLengths longest_first(PairLengths tokens, std::int64_t room);

// Windows [begin, end) of at most `length` tokens; each overlaps the previous one by `stride` (0 <=
// stride < length, else invalid_argument). The last window ends with the text. No tokens: one empty
// window. A text may have many more windows than tokens fit in one: none is held.
std::int64_t window_count(std::int64_t tokens, std::int64_t length, std::int64_t stride);
TextSpan window(std::int64_t tokens, std::int64_t length, std::int64_t stride, std::int64_t index);

Encoding slice(const Encoding& encoding, TextSpan tokens);

// Sets input_ids, and token_type_ids unless all are 0.
Sample sample_of(const Encoding& joined);

// One text, or a pair, as one sample of at most max_length tokens.
Sample model_input(const Tokenizer& tokenizer, std::string_view first,
                   const std::string_view* second, std::int64_t max_length);

}  // namespace shoal
