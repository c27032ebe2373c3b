// BERT's normalization, as Hugging Face's BertNormalizer does it (normalizers/bert.rs).
#pragma once

#include <cstdint>
#include <string_view>

#include "shoal/train/data/tokenizer/normalized_text.h"

namespace shoal {

struct BertNormalizerOptions {
  bool clean_text = true;            // removes controls, turns white space into spaces
  bool handle_chinese_chars = true;  // puts spaces around ideographs
  bool strip_accents = true;         // decomposes canonically and removes non-spacing marks
  bool lowercase = true;
};

class BertNormalizer {
 public:
  explicit BertNormalizer(const BertNormalizerOptions& options) : options_(options) {}

  // `text`: well-formed UTF-8 below 4 GiB. Adds `base` to the origins. Replaces `result`.
  void normalize(std::string_view text, std::size_t base, bool origins,
                 NormalizedText& result) const;

 private:
  BertNormalizerOptions options_;
};

}  // namespace shoal
