// Comparing tokenizers with Hugging Face's answers in tests/golden/tokenizer.
#pragma once

#include <functional>
#include <optional>
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
// The first 16 digits of SHA-256, as the scripts in tools/golden write it.
std::string digest(std::string_view bytes);
std::string digest(const std::vector<std::int32_t>& numbers);
std::vector<std::int32_t> character_offsets(const Encoding& encoding);

// Texts with and without a second one, joined by the template: ids, types, special tokens, offsets.
void expect_pairs(const Tokenizer& tokenizer, const nlohmann::json& pairs);
// Every character between two letters, 8,192 at a time: compares hashes of the normalized text
// (from `normalize`) and of ids and offsets.
void expect_characters(const Tokenizer& tokenizer,
                       const std::function<std::string(std::string_view)>& normalize,
                       const nlohmann::json& blocks);
// A file's lines: compares their number and hashes of ids and offsets. append_ids must agree.
void expect_file(const Tokenizer& tokenizer, const std::string& path,
                 const nlohmann::json& expected);

// nmt_nfkc, the map of characters in most SentencePiece models, as Debian's library has it. Nothing
// if it is not the map that the golden cases were made with.
std::optional<std::string> nmt_nfkc();

// `cases` has ids and offsets for each of `texts`, and the decoded text if it differs from the
// text.
void expect_cases(const Tokenizer& tokenizer, const nlohmann::json& texts,
                  const nlohmann::json& cases);

}  // namespace shoal::testing
