// Opening and saving tokenizers as files.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "shoal/train/data/tokenizer/byte_level_bpe.h"
#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// `path`: a directory (tokenizer.json, else vocab.txt, spiece.model, tokenizer.model or vocab.json
// + merges.txt; tokenizer_config.json, special_tokens_map.json and for *.model config.json give the
// roles and what vocab.txt and *.model do not say), or a tokenizer.json, vocab.txt or *.model
// itself. not_found names what was looked for; unavailable names what the file wants and Shoal has
// not.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path);

// From the text of a tokenizer.json: any normalizers, pre-tokenizers and decoders that Shoal has,
// in any order, around a BPE, Unigram or WordPiece model (docs/data.md lists them). The shapes of
// GPT-2's, BERT's and SentencePiece's families have faster code of their own; ids do not tell. A
// part that Shoal has not is refused by name: `unavailable`. JSON that does not follow the format
// is `corrupt_data`. `source` (a path) appears in messages.
std::shared_ptr<const TokenizerBase> tokenizer_from_json(std::string_view json,
                                                         const std::string& source);

// vocab.json and merges.txt under any name.
std::shared_ptr<const ByteLevelBpe> load_vocab_and_merges(const std::string& vocab_path,
                                                          const std::string& merges_path,
                                                          const BpeFileOptions& options = {});

// Writes the files that the tokenizer was read from (Tokenizer::files_read()) into `directory`, as
// they were, and of tokenizer.json, the kind's own files (vocab.json and merges.txt, or vocab.txt;
// SentencePiece has none), tokenizer_config.json and special_tokens_map.json those that are not
// among them. `directory` is made if missing; each file is written atomically. transformers'
// AutoTokenizer opens it. `model_max_length`, for a tokenizer_config.json of ours; 0: not said.
// `padding`: the token that fills samples up, where the tokenizer names none: the one thing that
// changes in a file that was read.
void save_tokenizer(const Tokenizer& tokenizer, const std::string& directory,
                    std::int64_t model_max_length = 0, std::optional<TokenId> padding = {});

}  // namespace shoal
