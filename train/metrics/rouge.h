// ROUGE (C. Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004), as the package
// rouge-score computes it.
//
//   const RougeScores scores = rouge(predictions, references, {.use_stemmer = true});
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shoal {

struct RougeOptions {
  bool use_stemmer = false;  // words of more than three characters are stemmed (porter_stemmer.h)
};

// F-measures, 0 to 1.
struct RougeScores {
  double rouge1 = 0, rouge2 = 0;  // shared words and pairs of words
  double rouge_l = 0;             // longest common subsequence of the texts
  double rouge_lsum = 0;          // the same by sentences, which line ends separate
};

// One text. Words are runs of a-z and 0-9, in lower case.
RougeScores rouge_of(std::string_view prediction, std::string_view reference,
                     const RougeOptions& options = {});

// Mean over the texts. The package `evaluate` reports the median of the means of 1000 random
// resamples, an estimate of this mean that differs from run to run. Throws invalid_argument unless
// there are as many predictions as references; all 0 without any.
RougeScores rouge(std::span<const std::string> predictions, std::span<const std::string> references,
                  const RougeOptions& options = {});

}  // namespace shoal
