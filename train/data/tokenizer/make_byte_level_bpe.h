// From a checked definition to a tokenizer. Internal to this room.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "shoal/train/data/tokenizer/byte_level_bpe.h"
#include "shoal/train/data/tokenizer/definition.h"

namespace shoal {

// Which token plays which part, under the keys of tokenizer_config.json: "bos_token" ... A name
// that the tokenizer lacks is corrupt_data. Empty: GPT-2's and RoBERTa's usual names.
using RoleNames = std::map<std::string, std::string>;

std::shared_ptr<const ByteLevelBpe> make_byte_level_bpe(BpeDefinition definition,
                                                        const std::string& source,
                                                        const RoleNames& roles = {});

}  // namespace shoal
