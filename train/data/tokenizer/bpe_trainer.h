// Trains a byte-level BPE vocabulary (Sennrich et al. 2016; Radford et al. 2019).
//
// Vocabulary and merges equal those of Hugging Face's ByteLevelBPETokenizer.train for the same text
// and options. Special tokens come first, then the 256 bytes in the order of their alphabet
// characters, then merges by falling count; ties go to the lowest pair of ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/byte_level_bpe.h"
#include "shoal/train/data/tokenizer/word_counts.h"

namespace shoal {

struct BpeTrainerOptions {
  std::int64_t vocab_size = 30000;  // includes special tokens and bytes
  std::int64_t min_frequency = 2;   // less frequent pairs are not merged
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  bool add_prefix_space = false;
  std::int64_t max_token_length = 0;  // bytes; 0: no limit
  int threads = 1;                    // for counting words
  TrainingProgress progress = {};     // stages "count words" and "merge"
};

class BpeTrainer {
 public:
  explicit BpeTrainer(BpeTrainerOptions options);  // invalid_argument for bad options
  ~BpeTrainer();

  // Counts the words of one text, as train_from_iterator does for one item. Rejects ill-formed
  // UTF-8.
  void add_text(std::string_view text);
  // Counts a file's words line by line, including line ends, as train(files) does.
  void add_file(const std::string& path);
  std::int64_t distinct_words() const;

  // Blocks. Keeps the counts, so that several sizes can be trained from them.
  std::shared_ptr<const ByteLevelBpe> train() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
