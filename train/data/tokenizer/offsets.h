// Positions of tokens in their text, as in Hugging Face's Encoding.offsets. Internal to this
// folder.
#pragma once

#include <cstdint>
#include <string_view>

#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// A word's position: its first byte in the text. A prefixed word starts with a space that the text
// does not contain; Hugging Face maps that space to the first character.
struct WordPlace {
  std::size_t begin = 0;
  bool prefixed = false;
};

// Appends ids and their spans to an Encoding, from left to right.
class OffsetWriter {
 public:
  // `text` (well-formed UTF-8) and `encoding` must outlive it.
  OffsetWriter(std::string_view text, Encoding& encoding) : text_(text), encoding_(encoding) {}

  // Excludes white space at a token's ends from its span (trim_offsets).
  void trim(bool prefix_space) {
    trim_ = true;
    prefix_space_ = prefix_space;
  }

  // Adds bytes [from, to) of the word; `token`: the bytes that the id decodes to.
  void add_token(TokenId id, const WordPlace& word, std::size_t from, std::size_t to,
                 std::string_view token);
  void add_span(TokenId id, std::size_t begin, std::size_t length);
  // `as`: text whose white space is trimmed; byte-level tokens are in their alphabet.
  void add_text(TokenId id, std::size_t begin, std::size_t length, std::string_view as);

 private:
  void add(TokenId id, TextSpan bytes, std::string_view token, bool is_added);
  std::int64_t characters_before(std::int64_t byte);

  std::string_view text_;
  Encoding& encoding_;
  bool trim_ = false, prefix_space_ = false;
  std::int64_t seen_bytes_ = 0, seen_characters_ = 0;  // how far characters_before() has counted
};

}  // namespace shoal
