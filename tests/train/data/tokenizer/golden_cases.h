// Comparing tokenizers with Hugging Face's answers in tests/golden/tokenizer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal::testing {

nlohmann::json read_tokenizer_golden(const std::string& name);
std::vector<std::int64_t> flat(const std::vector<TextSpan>& spans);
// A byte span must hold exactly the characters of its character span.
void expect_spans_agree(std::string_view text, const Encoding& encoding);
// `cases`: for each of `texts` ids, offsets, and decoded text where it is not the text.
void expect_cases(const Tokenizer& tokenizer, const nlohmann::json& texts,
                  const nlohmann::json& cases);

}  // namespace shoal::testing
