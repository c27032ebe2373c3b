// Text of tokens as they come.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// What decode() of all tokens has more than decode() of those before: neither a space that stands
// only inside a text nor a character whose bytes are several tokens can be had of a token alone.
class TextStream {
 public:
  // `tokenizer` outlives it. `before`: tokens whose text is known; no character of it is
  // unfinished.
  explicit TextStream(const Tokenizer& tokenizer, std::span<const TokenId> before = {});

  // The text that `token` completes; empty where a character is begun and not ended.
  std::string add(TokenId token);
  std::string finish();  // what is left of such a character: U+FFFD

 private:
  std::string decoded() const { return tokenizer_.decode(ids_); }

  const Tokenizer& tokenizer_;
  // The last that completed a text, and what came since.
  std::vector<TokenId> ids_;
  std::size_t known_ids_;  // the former
  std::string known_;      // their text
};

}  // namespace shoal
