// Creates tokenizers from validated definitions. Internal to this folder.
#pragma once

#include <memory>
#include <string>

#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/roles.h"

namespace shoal {

std::shared_ptr<const ByteLevelBpe> make_byte_level_bpe(BpeDefinition definition,
                                                        const std::string& source,
                                                        const RoleNames& roles = {});
std::shared_ptr<const WordPiece> make_word_piece(WordPieceDefinition definition,
                                                 const std::string& source,
                                                 const RoleNames& roles = {});
std::shared_ptr<const ComposedTokenizer> make_composed_tokenizer(ComposedDefinition definition,
                                                                 const std::string& source,
                                                                 const RoleNames& roles = {});

}  // namespace shoal
