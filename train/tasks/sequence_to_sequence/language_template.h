// The token of a text's language, which mBART's tokenizers put beside it.
#pragma once

#include <string>

#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// The tokenizer's template with the token `language` ("de_DE") in place of the language token that
// it has: behind </s> for mBART, before the text for mBART-50. Throws invalid_argument if the
// template has no language token or the tokenizer no token `language`.
SequenceTemplate with_language(const Tokenizer& tokenizer, const std::string& language);

}  // namespace shoal
