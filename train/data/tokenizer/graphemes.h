// Finds boundaries of user-perceived characters (UAX 29, extended grapheme clusters), as Hugging
// Face's normalizers do. Internal to this folder.
#pragma once

#include <cstdint>

namespace shoal::unicode {

enum GraphemeClass : std::uint8_t {
  grapheme_extend = 1,       // joins the preceding character
  grapheme_prepend = 2,      // joins the following character
  grapheme_consonant = 4,    // consonant of an Indic conjunct
  grapheme_linker = 8,       // joins two such consonants
  grapheme_between = 16,     // may stand between consonant and linker
  grapheme_control = 32,     // joins no neighbour, except "\n" after "\r"
  grapheme_pictograph = 64,  // joined by U+200D
  stripped_mark = 128        // unrelated to clusters: StripAccents removes it
};

// One byte per code point (unicode::kCodePoints); built once, then constant.
const std::uint8_t* grapheme_classes();

// Given a text's characters one by one, tells whether each joins the cluster of the previous one.
// Does not pair regional indicators (flags); no caller needs clusters of that length.
class GraphemeScanner {
 public:
  GraphemeScanner() : classes_(grapheme_classes()) {}
  bool joins(std::uint32_t character);

 private:
  const std::uint8_t* classes_;
  std::uint32_t last_ = 0;
  std::uint8_t last_class_ = grapheme_control;
  bool consonant_ = false, linked_ = false;  // within an Indic conjunct; that conjunct has a linker
  bool pictograph_ = false;                  // the cluster so far is a pictograph with extensions
};

}  // namespace shoal::unicode
