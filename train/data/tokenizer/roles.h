// Finds the tokens that have roles. Internal to this folder.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer_base.h"

namespace shoal {

// Role keys of tokenizer_config.json ("bos_token" ...), in the order in which transformers adds
// their tokens.
const std::vector<const char*>& role_names();

// Token by role.
using RoleNames = std::map<std::string, std::string>;
// Tokens by role with their flags, in the order of role_names().
using NamedTokens = std::vector<std::pair<std::string, AddedToken>>;
RoleNames names_of(const NamedTokens& tokens);
// `named`, completed from `usual` for missing roles.
NamedTokens named_or(const NamedTokens& named, const NamedTokens& usual);
// Makes each token with a role special; its other flags stay as stated.
StatedTokens with_roles(StatedTokens stated, const NamedTokens& named);

// Default names of a tokenizer kind if no file gives any. The first name in the vocabulary is used.
struct UsualNames {
  std::vector<const char*> bos, eos, pad, unk, mask, cls, sep;
};

// corrupt_data if the tokenizer lacks a name. `names` empty: uses `usual`.
TokenRoles find_roles(const Tokenizer& tokenizer, const RoleNames& names, const std::string& source,
                      const UsualNames& usual);

}  // namespace shoal
