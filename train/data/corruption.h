// Corrupted text that an encoder-decoder learns to restore.
//
// Both collators take blocks of tokens without labels (CausalLmDataset). Their decisions depend
// only on the seed, the epoch and the sample's ordinal (SampleDraws), so each epoch corrupts in
// another way.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shoal/train/data/draws.h"
#include "shoal/train/data/loader.h"
#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// How corrupted samples are padded to one length.
struct CorruptedPadding {
  std::int64_t inputs = 1, targets = 1;  // lengths are multiples of these
};

// T5's span corruption (Raffel et al. 2020), as in transformers' run_t5_mlm_flax. Spans of the
// block are hidden: `noise_density` of its tokens, in spans of `mean_noise_span_length` tokens in
// the mean. The input has one sentinel in place of each, the target each sentinel with its span:
//   Thank you for inviting me to your party  ->  Thank you <extra_id_0> me to <extra_id_1> party
//   target: <extra_id_0> for inviting <extra_id_1> your
// </s> follows both. A block always begins with text and ends with a hidden span.
struct SpanCorruptionOptions {
  std::uint64_t seed = 42;
  double noise_density = 0.15, mean_noise_span_length = 3;
  CorruptedPadding padding = {};
};

struct SpanCorruptionLengths {
  std::int64_t tokens = 0;   // of a block of text
  std::int64_t targets = 0;  // of its target
};
// Of the longest block whose corrupted input has at most `inputs` tokens. invalid_argument: a
// density beyond 0.5, a mean length below 1, or an input too short for a span.
SpanCorruptionLengths span_corruption_lengths(std::int64_t inputs,
                                              const SpanCorruptionOptions& options);

class SpanCorruptionCollator final : public PlacedCollator {
 public:
  // `tokens`: the length of a block. invalid_argument if the tokenizer has no end of text, or fewer
  // sentinels (<extra_id_0>, <extra_id_1>, ...) than such a block has spans. Keeps no reference.
  SpanCorruptionCollator(const Tokenizer& tokenizer, std::int64_t tokens,
                         const SpanCorruptionOptions& options);
  Batch collate_at(const BatchPlace& place, std::span<const Sample> samples,
                   MemoryResource& memory) const override;
  Sample corrupted(std::span<const TokenId> tokens, Draws& draws) const;

 private:
  SpanCorruptionOptions options_;
  PaddingCollator padding_;
  std::vector<TokenId> sentinels_;
  TokenId end_ = 0;
};

// BART's denoising (Lewis et al. 2020), as in transformers' run_bart_dlm_flax. First the sentences
// of each document change places. Then spans of Poisson lengths, `mask_ratio` of the tokens in
// all, become one mask token each; spans may meet, and those of length 0 are left out. The target
// is the whole block in its order. Special tokens keep their places and divide the block into
// documents. A sentence ends with a token that ends with '.', '!' or '?'. (The script asks NLTK,
// and has no loss of special tokens; here, as in BART's own code, the model learns them.)
struct DenoisingOptions {
  std::uint64_t seed = 42;
  double mask_ratio = 0.3, poisson_lambda = 3;
  double permute_sentence_ratio = 1;  // of a document's sentences
  CorruptedPadding padding = {};
};

class DenoisingCollator final : public PlacedCollator {
 public:
  // invalid_argument: no mask token, or shares or a mean out of range. Keeps no reference.
  DenoisingCollator(const Tokenizer& tokenizer, const DenoisingOptions& options);
  Batch collate_at(const BatchPlace& place, std::span<const Sample> samples,
                   MemoryResource& memory) const override;
  Sample corrupted(std::span<const TokenId> tokens, Draws& draws) const;

 private:
  enum class Kind : std::uint8_t { word, sentence_end, special };
  Kind kind_of(TokenId id) const { return kinds_[static_cast<std::size_t>(id)]; }
  // Permutes the sentences of each document in place.
  void permute_sentences(std::vector<TokenId>& ids, Draws& draws) const;
  std::vector<TokenId> with_masked_spans(std::span<const TokenId> ids, Draws& draws) const;

  DenoisingOptions options_;
  PaddingCollator padding_;
  std::vector<Kind> kinds_;  // by id
  TokenId mask_ = 0;
};

}  // namespace shoal
