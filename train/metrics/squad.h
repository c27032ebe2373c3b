// SQuAD v1.1's scores of answers, as its official evaluation script computes them.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shoal {

// Lower case, without ASCII punctuation and the words a, an and the, separated by single spaces.
std::string normalize_answer(std::string_view text);

struct AnswerScore {
  double exact_match = 0, f1 = 0;  // 0 to 1
};

// The best exact_match and the best f1 over the accepted answers; the two may come from different
// answers. Texts are UTF-8.
// F1 compares bags of words; it is 0 if no word is shared, even if both are empty. Throws
// invalid_argument without an accepted answer.
AnswerScore score_answer(std::string_view prediction, std::span<const std::string> accepted);

}  // namespace shoal
