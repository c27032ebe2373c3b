// SQuAD v1.1's scores of answers, as its official evaluation script computes them.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shoal {

// Lower case, without ASCII punctuation, the words a, an and the, and more than single spaces.
std::string normalize_answer(std::string_view text);

struct AnswerScore {
  double exact_match = 0, f1 = 0;  // 0 to 1
};

// The best over the accepted answers, of each score on its own. Texts are UTF-8. F1 is of the bags
// of words; where no word is shared it is 0, even if both are empty. No accepted answer:
// invalid_argument.
AnswerScore score_answer(std::string_view prediction, std::span<const std::string> accepted);

}  // namespace shoal
