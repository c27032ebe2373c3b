// Trains the vocabulary of a T5 tokenizer: a unigram model (Kudo 2018).
//
// The trainer starts with the substrings of words that repeat most. It fits their probabilities
// with expectation maximization, and removes those that the text needs least, until `vocab_size`
// are left, as SentencePiece's trainer does. The result does not depend on the number of threads.
//
// Words, template and <extra_id_0> ... are those of transformers' T5Tokenizer. There is no
// normalizer: SentencePiece's map of characters is not part of Shoal.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shoal/train/data/tokenizer/composed_tokenizer.h"
#include "shoal/train/data/tokenizer/word_counts.h"

namespace shoal {

struct UnigramTrainerOptions {
  std::int64_t vocab_size = 32100;  // includes <pad>, </s>, <unk> and the extra ids
  int extra_ids = 100;              // number of tokens <extra_id_0> ...
  int threads = 1;
  TrainingProgress progress = {};  // stages "count words" and "fit"
};

class UnigramTrainer {
 public:
  explicit UnigramTrainer(UnigramTrainerOptions options);  // invalid_argument for bad options

  // Counts a file's words. Rejects ill-formed UTF-8.
  void add_file(const std::string& path);
  std::int64_t distinct_words() const { return static_cast<std::int64_t>(counts_.size()); }

  // Blocks. invalid_argument if there are no words. Takes the most frequent characters, as many as
  // a quarter of the vocabulary; <unk> stands for the others.
  std::shared_ptr<const ComposedTokenizer> train() const;

 private:
  UnigramTrainerOptions options_;
  WordCounts counts_;
};

}  // namespace shoal
