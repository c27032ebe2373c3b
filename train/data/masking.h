// Masked language modelling (Devlin et al. 2018): selects tokens to hide and their replacements.
//
// Follows transformers' DataCollatorForLanguageModeling. Each token that is not special is chosen
// with `probability`. A chosen token becomes a label; its input becomes the mask token, a random
// token, or stays. With whole words, the first piece decides for all pieces of its word, and each
// piece is replaced independently, as in BERT. (transformers 5 uses only mask tokens there: set
// random_share 0 and mask_share 1.) Random numbers are Philox with key = seed and counter =
// (position in the sample, the sample's ordinal, epoch). Workers, ranks, batch sizes and padding
// therefore do not affect them (decision 10). Each epoch hides different tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shoal/train/data/loader.h"
#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

struct MaskingOptions {
  std::uint64_t seed = 42;
  double probability = 0.15;  // mlm_probability
  double mask_share = 0.8, random_share = 0.1;
  // A continuation piece belongs to the preceding word. WordPiece marks it with "##"; in
  // SentencePiece and byte-level BPE it lacks the leading "▁" or "Ġ".
  bool whole_words = false;
  std::int64_t pad_to_multiple_of = 1;
};

// Labels are the hidden tokens, kIgnoreLabel elsewhere. The samples' own labels are ignored.
class MaskingCollator final : public PlacedCollator {
 public:
  // invalid_argument: no mask token, shares that sum to more than 1, or whole words with a
  // vocabulary that has no word marks. Keeps no reference to the tokenizer.
  MaskingCollator(const Tokenizer& tokenizer, const MaskingOptions& options);
  // Rejects ids that the tokenizer does not have.
  Batch collate_at(const BatchPlace& place, std::span<const Sample> samples,
                   MemoryResource& memory) const override;

 private:
  enum class Kind : std::uint8_t { word, piece, special };
  struct Row {
    std::span<std::int32_t> ids, labels;
    std::int64_t ordinal, epoch;
  };
  void hide(const Sample& sample, const Row& row) const;

  MaskingOptions options_;
  PaddingCollator padding_;
  std::vector<Kind> kinds_;  // by id
  std::int64_t vocab_size_;
  TokenId mask_;
};

}  // namespace shoal
