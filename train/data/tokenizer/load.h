// Loads tokenizers from files and saves them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "shoal/train/data/tokenizer/byte_level_bpe.h"
#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// `path`: a directory, or a tokenizer.json, vocab.txt or *.model file. A directory needs a
// tokenizer.json, vocab.txt, spiece.model, tokenizer.model, or vocab.json and merges.txt.
// tokenizer_config.json, special_tokens_map.json and, for *.model, config.json supply roles and
// missing settings. not_found names the files that were tried; unavailable names the feature that
// Shoal does not support.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path);

// Parses a tokenizer.json: supported normalizers, pre-tokenizers and decoders in any order, around
// a BPE, Unigram or WordPiece model (docs/guides/data.md lists them). The shapes of the GPT-2, BERT
// and SentencePiece families use faster code with the same ids. `unavailable` names an unsupported
// part; `corrupt_data` means that the JSON does not follow the format. `source` (a path) appears in
// messages.
std::shared_ptr<const TokenizerBase> tokenizer_from_json(std::string_view json,
                                                         const std::string& source);

// Loads a vocab.json and a merges.txt, which may have any names.
std::shared_ptr<const ByteLevelBpe> load_vocab_and_merges(const std::string& vocab_path,
                                                          const std::string& merges_path,
                                                          const BpeFileOptions& options = {});

// Saves a tokenizer so that transformers' AutoTokenizer can open it. Writes the original files
// (Tokenizer::files_read()) unchanged. Adds the missing ones of these files: tokenizer.json,
// tokenizer_config.json, special_tokens_map.json, and the kind's own (vocab.json and merges.txt, or
// vocab.txt; SentencePiece has none). Creates `directory` if missing; writes each file atomically.
// `model_max_length` is for a new tokenizer_config.json; 0: omitted. `padding` is the padding token
// if the tokenizer names none; only this may change an original file.
void save_tokenizer(const Tokenizer& tokenizer, const std::string& directory,
                    std::int64_t model_max_length = 0, std::optional<TokenId> padding = {});

}  // namespace shoal
