// Text as characters with origins, and their decomposition. Internal to this folder.
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

// Appends the characters of well-formed UTF-8 whose first byte has offset `base` in the text.
void append_characters(std::string_view text, std::size_t base, std::vector<Character>& characters);

void append_utf8(std::string& text, std::uint32_t value);
// If `origins`, also appends the character's origin for each byte.
inline void append(NormalizedText& result, const Character& character, bool origins) {
  const std::size_t before = result.text.size();
  if (character.value < 0x80)
    result.text.push_back(static_cast<char>(character.value));
  else
    append_utf8(result.text, character.value);
  if (origins)
    result.origins.insert(result.origins.end(), result.text.size() - before, character.origin);
}

// Decomposes (NFD, or NFKD if `compatible`) and sorts marks into canonical order, with the tables
// of Unicode 9, as in Hugging Face. Origins belong to positions, also as in Hugging Face: marks
// that are reordered do not take their origins along.
void decompose(std::vector<Character>& characters, bool compatible);

// An element of Hugging Face's "transformation": a new character. `change` 1: it is inserted. 0: it
// replaces one old character. -n: it replaces n + 1 old characters.
struct Change {
  std::uint32_t value;
  std::int64_t change;
};
// NormalizedString::transform. Returns how many characters of the old text it consumed.
std::size_t transform(std::vector<Character>& characters, const std::vector<Change>& changes);

// Decomposes and composes (NFC, or NFKC if `compatible`), with the same tables and origins as
// decompose(). A composed character has the origin of its first part.
void compose(std::vector<Character>& characters, bool compatible);

// Marks (Mn, Mc, Me) of Unicode 9, as in Hugging Face's StripAccents.
bool is_combining_mark(std::uint32_t character);

// Converts to lower case; U+0130 becomes two characters.
void lower_case(std::vector<Character>& characters);

}  // namespace shoal
