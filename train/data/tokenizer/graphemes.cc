#include "shoal/train/data/tokenizer/graphemes.h"

namespace shoal::unicode {
namespace {

constexpr std::uint32_t kJoiner = 0x200D;

// Hangul jamo (leading consonant, vowel, trailing consonant), and syllables without (open) or with
// (closed) a trailing consonant.
enum class Hangul : std::uint8_t { none, leading, vowel, trailing, open, closed };

Hangul hangul_of(std::uint32_t c) {
  if (c < 0x1100 || c > 0xD7FB) return Hangul::none;
  if (c < 0x1160 || (c >= 0xA960 && c <= 0xA97C)) return Hangul::leading;
  if (c < 0x11A8 || (c >= 0xD7B0 && c <= 0xD7C6)) return Hangul::vowel;
  if (c < 0x1200 || c >= 0xD7CB) return Hangul::trailing;
  if (c >= 0xAC00 && c <= 0xD7A3) return (c - 0xAC00) % 28 == 0 ? Hangul::open : Hangul::closed;
  return Hangul::none;
}

bool joins_hangul(Hangul before, Hangul after) {
  switch (before) {
    case Hangul::leading:
      return after != Hangul::none && after != Hangul::trailing;
    case Hangul::vowel:
    case Hangul::open:
      return after == Hangul::vowel || after == Hangul::trailing;
    case Hangul::trailing:
    case Hangul::closed:
      return after == Hangul::trailing;
    case Hangul::none:
      break;
  }
  return false;
}

}  // namespace

bool GraphemeScanner::joins(std::uint32_t character) {
  const std::uint8_t kind = classes_[character];
  bool joined = false;
  if ((kind | last_class_) & grapheme_control)
    joined = last_ == '\r' && character == '\n';
  else
    joined = (kind & grapheme_extend) || (last_class_ & grapheme_prepend) ||
             (linked_ && (kind & grapheme_consonant)) ||
             (pictograph_ && last_ == kJoiner && (kind & grapheme_pictograph)) ||
             joins_hangul(hangul_of(last_), hangul_of(character));
  if (kind & grapheme_consonant) {
    consonant_ = true;
    linked_ = false;
  } else if (consonant_ && (kind & grapheme_linker)) {
    linked_ = true;
  } else if (!(kind & grapheme_between)) {
    consonant_ = linked_ = false;
  }
  pictograph_ = (kind & grapheme_pictograph) || (pictograph_ && (kind & grapheme_extend));
  last_ = character;
  last_class_ = kind;
  return joined;
}

}  // namespace shoal::unicode
