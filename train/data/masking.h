// Masked language modelling (Devlin et al. 2018): which tokens are hidden, and behind what.
//
// As transformers' DataCollatorForLanguageModeling: each token that is not special is chosen with
// `probability`; a chosen one has a label and becomes the mask token, any token of the vocabulary,
// or stays. With whole words a word is chosen by its first piece and every piece with it, each
// replaced on its own as in BERT (transformers 5 then has only mask tokens: random_share 0 and
// mask_share 1 say so). Random numbers are Philox's: key = seed, counter = (place in the sample,
// the sample's ordinal, epoch). Workers, ranks, batch sizes and padding change nothing (decision
// 10), and every epoch hides other tokens.
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
  // A piece that begins with WordPiece's "##", or without the "▁" of SentencePiece or the "Ġ" of
  // byte-level BPE, belongs to the word before it.
  bool whole_words = false;
  std::int64_t pad_to_multiple_of = 1;
};

// Labels are the hidden tokens, kIgnoreLabel elsewhere. Samples' own labels are not looked at.
class MaskingCollator final : public PlacedCollator {
 public:
  // invalid_argument: no mask token, shares beyond 1, or whole words and a vocabulary without
  // marks. Keeps nothing of the tokenizer.
  MaskingCollator(const Tokenizer& tokenizer, const MaskingOptions& options);
  // Refuses ids that the tokenizer lacks.
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
