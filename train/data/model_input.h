// Turns texts into a model's input: encodes them without special tokens, truncates them on the
// right as Hugging Face `tokenizers` does, and applies the tokenizer's template.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shoal/train/data/dataset.h"
#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// Number of text tokens that fit into max_length together with the template's special tokens.
// Throws invalid_argument if none fits.
std::int64_t room_for_text(const SequenceTemplate& sequence, bool of_pair, std::int64_t max_length);

// Lengths of two texts truncated to `room` tokens ("longest_first"). The longer text shrinks first;
// once both are equal, they shrink together. If one token remains, the longer text keeps it; if
// both are equally long, the second text does.
struct PairLengths {
  std::int64_t first = 0, second = 0;
  friend bool operator==(const PairLengths&, const PairLengths&) = default;
};
PairLengths longest_first(PairLengths tokens, std::int64_t room);

// Windows [begin, end) of at most `length` tokens; each overlaps the previous one by `stride` (0 <=
// stride < length, else invalid_argument). The last window ends with the text. No tokens: one empty
// window. Windows are computed one by one and not stored, because a text may have very many.
std::int64_t window_count(std::int64_t tokens, std::int64_t length, std::int64_t stride);
TextSpan window(std::int64_t tokens, std::int64_t length, std::int64_t stride, std::int64_t index);

Encoding slice(const Encoding& encoding, TextSpan tokens);

// Sets input_ids, and token_type_ids unless all are 0.
Sample sample_of(const Encoding& joined);

// One text, or a pair, as one sample of at most max_length tokens.
Sample model_input(const Tokenizer& tokenizer, std::string_view first,
                   const std::string_view* second, std::int64_t max_length);

}  // namespace shoal
