// BERT's normalization, as Hugging Face's BertNormalizer does it (normalizers/bert.rs).
#pragma once

#include <cstdint>
#include <string_view>

#include "shoal/train/data/tokenizer/normalized_text.h"

namespace shoal {

struct BertNormalizerOptions {
  bool clean_text = true;            // controls go, white space becomes spaces
  bool handle_chinese_chars = true;  // spaces around ideographs
  bool strip_accents = true;         // canonical decomposition, without its non-spacing marks
  bool lowercase = true;
};

class BertNormalizer {
 public:
  explicit BertNormalizer(const BertNormalizerOptions& options) : options_(options) {}

  // `text`: well-formed UTF-8 of less than 4 GiB; `base` is added to the origins. Replaces
  // `result`.
  void normalize(std::string_view text, std::size_t base, bool origins,
                 NormalizedText& result) const;

 private:
  BertNormalizerOptions options_;
};

}  // namespace shoal
