// What BERT's normalizer and pre-tokenizer hold of each character: as Hugging Face, whose parts
// follow Unicode versions of different years (tools/make_unicode_classes.py asks them).
#pragma once

#include <cstdint>

namespace shoal::unicode {

enum BertClass : std::uint8_t {
  bert_removed = 1,      // clean_text drops it: controls and the like
  bert_blank = 2,        // clean_text makes a space of it
  bert_mark = 4,         // strip_accents drops it: non-spacing marks
  bert_punctuation = 8,  // a word of its own
  bert_white = 16,       // ends a word
  bert_ideograph = 32,   // handle_chinese_chars puts spaces around it
};

// One byte for each of unicode::kCodePoints; built once, then constant.
const std::uint8_t* bert_classes();

// Simple lower case; of U+0130, which becomes two characters, itself.
std::uint32_t lower_case(std::uint32_t character);

}  // namespace shoal::unicode
