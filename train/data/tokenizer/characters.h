// Text as characters that know where they came from, and their decomposition. Internal to this
// room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/normalized_text.h"

namespace shoal {

struct Character {
  std::uint32_t value;
  NormalizedText::Origin origin;
};

// Appends the characters of well-formed UTF-8 whose first byte is byte `base` of the text.
void append_characters(std::string_view text, std::size_t base, std::vector<Character>& characters);

void append_utf8(std::string& text, std::uint32_t value);
// Its origin too, for each byte, where `origins`.
inline void append(NormalizedText& result, const Character& character, bool origins) {
  const std::size_t before = result.text.size();
  if (character.value < 0x80)
    result.text.push_back(static_cast<char>(character.value));
  else
    append_utf8(result.text, character.value);
  if (origins)
    result.origins.insert(result.origins.end(), result.text.size() - before, character.origin);
}

// Decomposes (NFD, or NFKD where `compatible`) and brings marks into canonical order, with the
// tables of Unicode 9 as Hugging Face. As there, origins go by place, not by character: where marks
// change places, their origins stay.
void decompose(std::vector<Character>& characters, bool compatible);

// What Hugging Face calls a transformation: a character and how many it adds (1) or takes the place
// of beyond its own (-n).
struct Change {
  std::uint32_t value;
  std::int64_t change;
};
// NormalizedString::transform. Returns the characters of the old text that are accounted for.
std::size_t transform(std::vector<Character>& characters, const std::vector<Change>& changes);

// Decomposes and composes again (NFC, or NFKC), with the same tables; origins as decompose() has
// them, and a character composed of several has the first one's.
void compose(std::vector<Character>& characters, bool compatible);

// Marks (Mn, Mc, Me) as Hugging Face's StripAccents has them: those of Unicode 9.
bool is_combining_mark(std::uint32_t character);

// Lower case; U+0130 becomes two characters.
void lower_case(std::vector<Character>& characters);

}  // namespace shoal
