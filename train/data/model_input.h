// Texts as a model's input: encoded without special tokens, cut to what fits, put into the
// tokenizer's template. Cut as Hugging Face `tokenizers` cuts, at the right.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shoal/train/data/dataset.h"
#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// Tokens of text that fit into max_length beside the template's own. None: invalid_argument.
std::int64_t room_for_text(const SequenceTemplate& sequence, bool of_pair, std::int64_t max_length);

// What stays of two texts in `room` tokens (truncation "longest_first"): the longer gives until it
// is as short as the other, then both; an odd token is the longer's, of equals the second's.
struct PairLengths {
  std::int64_t first = 0, second = 0;
  friend bool operator==(const PairLengths&, const PairLengths&) = default;
};
PairLengths longest_first(PairLengths tokens, std::int64_t room);

// [begin, end) of each window of at most `length` over `tokens`, which overlaps the one before by
// `stride` (0 <= stride < length, else invalid_argument); the last ends with the text. No tokens:
// one empty window.
std::vector<TextSpan> windows(std::int64_t tokens, std::int64_t length, std::int64_t stride);

Encoding slice(const Encoding& encoding, TextSpan tokens);

// input_ids, and token_type_ids unless all are 0.
Sample sample_of(const Encoding& joined);

// One text, or two, as one sample of at most max_length tokens.
Sample model_input(const Tokenizer& tokenizer, std::string_view first,
                   const std::string_view* second, std::int64_t max_length);

}  // namespace shoal
