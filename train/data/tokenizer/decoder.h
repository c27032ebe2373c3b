// Hugging Face's decoders, which join tokens into text. Internal to this folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/train/data/tokenizer/split_pattern.h"

namespace shoal {

struct DecoderStep {
  enum class Kind {
    metaspace,
    replace,
    byte_fallback,
    fuse,
    strip,
    byte_level,  // joins all tokens and decodes GPT-2's alphabet
    word_piece,  // a space before each token except the first and those with prefix `pattern`
    bpe          // `pattern` ends a word and becomes a space
  };
  Kind kind = Kind::fuse;
  std::string name = {};                   // file and location in it
  std::string pattern = {}, content = {};  // metaspace, strip: `pattern` is the character
  std::optional<SplitPattern> regex = {};  // replace: instead of `pattern`
  bool drop_first = false;                 // metaspace: drop the first token's spaces
  bool cleanup = false;                    // word_piece: drop spaces before punctuation
  std::int64_t start = 0, stop = 0;        // strip: maximum count at each end
};

// Decodes the tokens. If byte_level is the last step, the result may not be UTF-8. corrupt_data if
// a step grows the text too much (growth.h).
std::string decode_tokens(const std::vector<DecoderStep>& steps, std::vector<std::string> tokens);

// Text of one WordPiece token.
std::string word_piece_text(std::string token, bool is_first, const std::string& prefix,
                            bool cleanup);

}  // namespace shoal
