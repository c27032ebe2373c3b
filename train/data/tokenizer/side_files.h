// What the files beside a vocabulary say of its tokens: tokenizer_config.json,
// special_tokens_map.json and added_tokens.json, as transformers'
// PreTrainedTokenizerBase._from_pretrained reads them. Internal to this room.
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
  // Tokens that a file gives an id, by id: added_tokens_decoder of tokenizer_config.json, or where
  // that is missing added_tokens.json.
  StatedTokens stated;
  bool stated_flags_win = false;  // over tokenizer.json's: those of added_tokens_decoder do
  NamedTokens named;
  std::vector<AddedToken> extra;  // further special tokens, which have neither id nor role
  std::string tokenizer_class;    // of tokenizer_config.json, or empty

  bool add_prefix_space = false;
  std::optional<bool> add_bos_token, add_eos_token;
  // BERT's, under transformers' names.
  bool do_lower_case = true, tokenize_chinese_chars = true;
  std::optional<bool> strip_accents;  // absent: as do_lower_case
  SpieceOptions spiece;               // without its tokens

  bool names_tokens() const { return !stated.empty() || !named.empty() || !extra.empty(); }
};

// Files that are missing say nothing, as does a field that is null.
SideFiles read_side_files(const std::filesystem::path& directory);

// The roles' tokens and the extra ones.
std::vector<AddedToken> tokens_without_ids(const SideFiles& files, const NamedTokens& named);
// Adds the tokens of the files to those of a tokenizer.json, as transformers does: a token has its
// id there, where it has one, and becomes an added token; a role makes its token special.
void add_side_tokens(TokenizerDefinition& definition, const SideFiles& files,
                     const std::string& source);

}  // namespace shoal
