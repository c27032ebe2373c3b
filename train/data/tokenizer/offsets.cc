#include "shoal/train/data/tokenizer/offsets.h"

#include <algorithm>

#include "shoal/train/data/tokenizer/unicode_classes.h"

namespace shoal {
namespace {

constexpr std::uint32_t kSpaceCharacter = 0x120;  // byte-level form of a space

bool is_blank(const unicode::CodePoint& c, bool is_added) {
  if (!is_added) return c.value == ' ';
  return c.value == kSpaceCharacter ||
         (unicode::classes()[c.value] & unicode::kKind) == unicode::space;
}

// Number of white-space characters at the token's front and end. In a token of the model only plain
// spaces count.
std::pair<std::int64_t, std::int64_t> blanks_of(std::string_view token, bool is_added) {
  std::int64_t front = 0, back = 0;
  if (!is_added) {
    const std::size_t first = std::min(token.find_first_not_of(' '), token.size());
    const std::size_t last = token.find_last_not_of(' ');
    return {static_cast<std::int64_t>(first),
            static_cast<std::int64_t>(last == std::string_view::npos ? token.size()
                                                                     : token.size() - 1 - last)};
  }
  for (std::size_t at = 0; at < token.size();) {
    const auto c = unicode::decode(token.data() + at);
    if (!is_blank(c, true)) break;
    ++front;
    at += c.bytes;
  }
  for (std::size_t end = token.size(); end > 0;) {
    end = unicode::previous(token, end);
    if (!is_blank(unicode::decode(token.data() + end), true)) break;
    ++back;
  }
  return {front, back};
}

}  // namespace

std::int64_t OffsetWriter::characters_before(std::int64_t byte) {
  // Tokens that share a character return to its first byte.
  for (; seen_bytes_ > byte; --seen_bytes_)
    if (!unicode::is_continuation(text_[static_cast<std::size_t>(seen_bytes_ - 1)]))
      --seen_characters_;
  for (; seen_bytes_ < byte; ++seen_bytes_)
    if (!unicode::is_continuation(text_[static_cast<std::size_t>(seen_bytes_)])) ++seen_characters_;
  return seen_characters_;
}

void OffsetWriter::add_token(TokenId id, const WordPlace& word, std::size_t from, std::size_t to,
                             std::string_view token) {
  const std::size_t shift = word.prefixed ? 1 : 0;
  std::size_t begin = word.begin + (from > shift ? from - shift : 0);
  std::size_t end = word.begin + std::max(to, std::size_t{1}) - shift;
  if (end == begin) end = begin + 1;  // the prefix alone maps to the first character
  while (begin > 0 && unicode::is_continuation(text_[begin])) --begin;
  while (end < text_.size() && unicode::is_continuation(text_[end])) ++end;
  add(id, {static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)}, token, false);
}

void OffsetWriter::add_span(TokenId id, std::size_t begin, std::size_t length) {
  add_text(id, begin, length, text_.substr(begin, length));
}

void OffsetWriter::add_text(TokenId id, std::size_t begin, std::size_t length,
                            std::string_view as) {
  add(id, {static_cast<std::int64_t>(begin), static_cast<std::int64_t>(begin + length)}, as, true);
}

void OffsetWriter::add(TokenId id, TextSpan bytes, std::string_view token, bool is_added) {
  TextSpan characters;
  characters.begin = characters_before(bytes.begin);
  characters.end = characters_before(bytes.end);
  if (trim_) {  // as process_offsets in pre_tokenizers/byte_level.rs
    auto [front, back] = blanks_of(token, is_added);
    const bool is_first = encoding_.ids.empty() || characters.begin == 0;
    if (is_first && prefix_space_ && front == 1) front = 0;
    TextSpan trimmed = characters;
    if (front > 0) trimmed.begin = std::min(trimmed.begin + front, trimmed.end);
    if (back > 0 && trimmed.end >= back) trimmed.end = std::max(trimmed.end - back, trimmed.begin);
    const auto forward = [&](std::int64_t at, std::int64_t count) {
      auto position = static_cast<std::size_t>(at);
      for (; count > 0; --count) position += unicode::decode(text_.data() + position).bytes;
      return static_cast<std::int64_t>(position);
    };
    const std::int64_t begin = forward(bytes.begin, trimmed.begin - characters.begin);
    bytes.end = forward(begin, trimmed.end - trimmed.begin);
    bytes.begin = begin;
    characters = trimmed;
  }
  encoding_.ids.push_back(id);
  encoding_.bytes.push_back(bytes);
  encoding_.characters.push_back(characters);
}

}  // namespace shoal
