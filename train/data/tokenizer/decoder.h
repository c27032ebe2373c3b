// Hugging Face's decoders: what becomes of tokens' texts when they are joined. Internal to this
// room.
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
    byte_level,  // all tokens, written in GPT-2's alphabet, become one text
    word_piece,  // a space in front of all but the first and those that begin with `pattern`
    bpe          // `pattern` ends a word: a space takes its place
  };
  Kind kind = Kind::fuse;
  std::string name = {};                   // the file and its place there
  std::string pattern = {}, content = {};  // metaspace, strip: `pattern` is the character
  std::optional<SplitPattern> regex = {};  // replace: instead of `pattern`
  bool drop_first = false;                 // metaspace: leave the first token's spaces out
  bool cleanup = false;                    // word_piece: the spaces before punctuation go
  std::int64_t start = 0, stop = 0;        // strip: so many at most at each end
};

// What the tokens become; of byte_level as the last step bytes that need not be UTF-8. corrupt_data
// where a step makes too much of them (growth.h).
std::string decode_tokens(const std::vector<DecoderStep>& steps, std::vector<std::string> tokens);

// A token of WordPiece in its text.
std::string word_piece_text(std::string token, bool is_first, const std::string& prefix,
                            bool cleanup);

}  // namespace shoal
