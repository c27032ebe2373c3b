// BLEU (K. Papineni et al., 2002) and chrF (M. Popovic, 2015) of a corpus with one reference each,
// as the package sacrebleu computes them.
//
// Throw invalid_argument unless there are as many predictions as references.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shoal {

// Words and punctuation, separated by spaces: the tokenizer "13a" of WMT's mteval-v13a.
std::string tokenized_13a(std::string_view text);

struct Bleu {
  double score = 0;                    // 0 to 100
  std::array<double, 4> precisions{};  // of runs of one to four words, 0 to 100
  double brevity_penalty = 1;
  std::int64_t length = 0, reference_length = 0;  // words
};

// Tokenizer 13a, case-sensitive, exponential smoothing: sacrebleu's defaults.
Bleu bleu(std::span<const std::string> predictions, std::span<const std::string> references);

// chrF2, 0 to 100: runs of one to six characters without white space, recall weighs twice.
double chrf(std::span<const std::string> predictions, std::span<const std::string> references);

}  // namespace shoal
