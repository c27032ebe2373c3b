// Reads tokens from the files beside a vocabulary: tokenizer_config.json, special_tokens_map.json
// and added_tokens.json, as transformers' PreTrainedTokenizerBase._from_pretrained does. Internal
// to this folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/roles.h"

namespace shoal {

struct SideFiles {
  // Tokens with ids, by id: from added_tokens_decoder of tokenizer_config.json or, if that is
  // missing, from added_tokens.json.
  StatedTokens stated;
  // True if the flags in `stated`, read from added_tokens_decoder, override tokenizer.json's.
  bool stated_flags_win = false;
  NamedTokens named;
  std::vector<AddedToken> extra;  // further special tokens without id or role
  std::string tokenizer_class;    // from tokenizer_config.json, or empty

  bool add_prefix_space = false;
  std::optional<bool> add_bos_token, add_eos_token;
  // BERT options under transformers' names.
  bool do_lower_case = true, tokenize_chinese_chars = true;
  std::optional<bool> strip_accents;  // absent: same as do_lower_case
  SpieceOptions spiece;               // without special, stated and extra tokens

  bool names_tokens() const { return !stated.empty() || !named.empty() || !extra.empty(); }
};

// Missing files and null fields leave the defaults.
SideFiles read_side_files(const std::filesystem::path& directory);

// The tokens of `named`, followed by the extra tokens of `files`.
std::vector<AddedToken> tokens_without_ids(const SideFiles& files, const NamedTokens& named);
// Adds the files' tokens to those of a tokenizer.json, as transformers does. A token keeps the id
// that it has there and becomes an added token; a role makes its token special.
void add_side_tokens(TokenizerDefinition& definition, const SideFiles& files,
                     const std::string& source);

}  // namespace shoal
