// Which token plays which part. Internal to this room.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// Under the keys of tokenizer_config.json: "bos_token" ...
using RoleNames = std::map<std::string, std::string>;

// The names that a kind of tokenizer uses where no file says any: the first that there is.
struct UsualNames {
  std::vector<const char*> bos, eos, pad, unk, mask, cls, sep;
};

// A name that the tokenizer lacks is corrupt_data. `names` empty: the usual ones.
TokenRoles find_roles(const Tokenizer& tokenizer, const RoleNames& names, const std::string& source,
                      const UsualNames& usual);

}  // namespace shoal
