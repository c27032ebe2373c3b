// Which token plays which part. Internal to this room.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer_base.h"

namespace shoal {

// "bos_token" ... of tokenizer_config.json, in the order in which transformers adds their tokens.
const std::vector<const char*>& role_names();

// Token by role.
using RoleNames = std::map<std::string, std::string>;
// The same with the tokens' flags, in the order of role_names().
using NamedTokens = std::vector<std::pair<std::string, AddedToken>>;
RoleNames names_of(const NamedTokens& tokens);
// `named`, and `usual` for the roles that it lacks.
NamedTokens named_or(const NamedTokens& named, const NamedTokens& usual);
// A token that has a role is special; its other flags stay as they are stated.
StatedTokens with_roles(StatedTokens stated, const NamedTokens& named);

// The names that a kind of tokenizer uses where no file says any: the first that there is.
struct UsualNames {
  std::vector<const char*> bos, eos, pad, unk, mask, cls, sep;
};

// A name that the tokenizer lacks is corrupt_data. `names` empty: the usual ones.
TokenRoles find_roles(const Tokenizer& tokenizer, const RoleNames& names, const std::string& source,
                      const UsualNames& usual);

}  // namespace shoal
