// Character classes of BERT's normalizer and pre-tokenizer. They match Hugging Face, whose parts
// use different Unicode versions (tools/make_unicode_classes.py queries them).
#pragma once

#include <cstdint>

namespace shoal::unicode {

enum BertClass : std::uint8_t {
  bert_removed = 1,      // clean_text removes it: controls and the like
  bert_blank = 2,        // clean_text turns it into a space
  bert_mark = 4,         // strip_accents removes it: non-spacing marks
  bert_punctuation = 8,  // a word of its own
  bert_white = 16,       // ends a word
  bert_ideograph = 32,   // handle_chinese_chars puts spaces around it
};

// One byte per code point (unicode::kCodePoints); built once, then constant.
const std::uint8_t* bert_classes();

// Simple lower case. U+0130, whose lower case is two characters, is returned unchanged.
std::uint32_t lower_case(std::uint32_t character);

}  // namespace shoal::unicode
