// Decodes tokens incrementally into text.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// Returns the text that each new token adds to decode() of all tokens. Decoding a token alone would
// lose inner spaces and characters whose bytes are several tokens.
class TextStream {
 public:
  // `tokenizer` must outlive it. `before`: preceding tokens whose text is already known; they must
  // not end within a character.
  explicit TextStream(const Tokenizer& tokenizer, std::span<const TokenId> before = {});

  // The text that `token` completes; empty while a character is incomplete.
  std::string add(TokenId token);
  std::string finish();  // U+FFFD for an incomplete last character

 private:
  std::string decoded() const { return tokenizer_.decode(ids_); }

  const Tokenizer& tokenizer_;
  // The tokens that completed the text returned last, then all later tokens.
  std::vector<TokenId> ids_;
  std::size_t known_ids_;  // how many tokens of ids_ completed that text
  std::string known_;      // the text of these tokens
};

}  // namespace shoal
