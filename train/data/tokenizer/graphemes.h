// Where user-perceived characters end (Unicode's UAX 29, extended grapheme clusters), as Hugging
// Face's normalizers see them. Internal to this room.
#pragma once

#include <cstdint>

namespace shoal::unicode {

enum GraphemeClass : std::uint8_t {
  grapheme_extend = 1,       // belongs to what stands before it
  grapheme_prepend = 2,      // belongs to what comes after it
  grapheme_consonant = 4,    // of an Indic conjunct
  grapheme_linker = 8,       // joins two consonants
  grapheme_between = 16,     // may stand between consonant and linker
  grapheme_control = 32,     // belongs to nothing
  grapheme_pictograph = 64,  // joined by U+200D
  stripped_mark = 128        // says nothing of clusters: the normalizer StripAccents drops it
};

// One byte for each of unicode::kCodePoints; built once, then constant.
const std::uint8_t* grapheme_classes();

// Given a text's characters one by one, says whether each belongs to the cluster of the one before.
// Flags (pairs of regional indicators) are left apart: nothing asks for clusters of that length.
class GraphemeScanner {
 public:
  GraphemeScanner() : classes_(grapheme_classes()) {}
  bool joins(std::uint32_t character);

 private:
  const std::uint8_t* classes_;
  std::uint32_t last_ = 0;
  std::uint8_t last_class_ = grapheme_control;
  bool consonant_ = false, linked_ = false;  // a conjunct may go on here; its linker was seen
  bool pictograph_ = false;                  // a pictograph and its extensions end here
};

}  // namespace shoal::unicode
