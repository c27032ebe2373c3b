// Splits text into words by GPT-2's pattern, without a regular-expression engine:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// Every character belongs to exactly one word.
#pragma once

#include <cstddef>
#include <string_view>

#include "shoal/train/data/tokenizer/unicode_classes.h"

namespace shoal {

class Gpt2Scanner {
 public:
  // `text` must be well-formed UTF-8 and outlive the scanner.
  explicit Gpt2Scanner(std::string_view text)
      : at_(text.data()), end_(text.data() + text.size()), classes_(unicode::classes()) {}

  // The next word, or an empty view at the end.
  std::string_view next() {
    const char* const begin = at_;
    if (begin == end_) return {};
    if (*begin == '\'' && contraction()) return view(begin);
    const char* run = begin;
    if (*begin == ' ') {
      if (begin + 1 == end_) return at_ = end_, view(begin);
      run = begin + 1;
    }
    std::uint32_t bytes = 0;
    const std::uint8_t kind = kind_at(run, bytes);
    if (kind != unicode::space) {
      at_ = end_of_run(run + bytes, kind);
      return view(begin);
    }
    spaces(begin);
    return view(begin);
  }

 private:
  std::string_view view(const char* begin) const {
    return {begin, static_cast<std::size_t>(at_ - begin)};
  }

  std::uint8_t kind_at(const char* at, std::uint32_t& bytes) const {
    const auto byte = static_cast<std::uint8_t>(*at);
    if (byte < 0x80) {
      bytes = 1;
      return classes_[byte] & unicode::kKind;
    }
    const unicode::CodePoint c = unicode::decode(at);
    bytes = c.bytes;
    return classes_[c.value] & unicode::kKind;
  }

  const char* end_of_run(const char* at, std::uint8_t kind) const {
    while (at != end_) {
      std::uint32_t bytes = 0;
      if (kind_at(at, bytes) != kind) break;
      at += bytes;
    }
    return at;
  }

  // \s+(?!\S)|\s+ : white space up to the end of the text, or all but its last character, which
  // starts the next word. A single white-space character is a word.
  void spaces(const char* begin) {
    const char* last = begin;
    const char* at = begin;
    while (at != end_) {
      std::uint32_t bytes = 0;
      if (kind_at(at, bytes) != unicode::space) break;
      last = at;
      at += bytes;
    }
    at_ = at == end_ || last == begin ? at : last;
  }

  bool contraction() {
    const std::size_t left = static_cast<std::size_t>(end_ - at_);
    if (left < 2) return false;
    const char a = at_[1];
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at_ += 2, true;
    if (left < 3) return false;
    const char b = at_[2];
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
      return at_ += 3, true;
    return false;
  }

  const char* at_;
  const char* end_;
  const std::uint8_t* classes_;
};

}  // namespace shoal
