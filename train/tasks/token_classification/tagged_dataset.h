// Tagged words as model inputs, as in run_ner: each word is tokenized separately, and its first
// piece has its tag.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shoal/train/data/dataset.h"
#include "shoal/train/data/labels.h"
#include "shoal/train/data/tokenizer/tokenizer.h"
#include "shoal/train/tasks/token_classification/tagged_text.h"

namespace shoal {

struct TaggedOptions {
  LabelSet labels;                           // discover_tags() of the training file
  std::vector<std::int32_t> model_ids = {};  // by tag, if the model orders tags differently
  // True: a word's other pieces get its tag too, as I- instead of B- if that tag exists. False:
  // they get kIgnoreLabel.
  bool label_all_tokens = false;
  std::int64_t max_seq_length = 128;  // longer sentences are cut at the right
};

// Sample::labels has one entry per input id. Special tokens have kIgnoreLabel, as does every token
// if the text has no tags. Byte-level BPE sees a space before each word.
class TaggedDataset final : public Dataset {
 public:
  // A tag that is not in the labels throws corrupt_data with file and line.
  TaggedDataset(std::shared_ptr<const TaggedText> text, std::shared_ptr<const Tokenizer> tokenizer,
                const TaggedOptions& options);
  std::int64_t size() const override { return static_cast<std::int64_t>(text_->sentences.size()); }
  Sample get(std::int64_t index) const override;
  // Position of each word's first piece in the sample. Words that were cut off, or that the
  // tokenizer turns into no tokens, have no entry.
  std::vector<std::int64_t> first_pieces(std::int64_t index) const;
  // The words that have an entry in first_pieces().
  std::vector<std::string> words_with_pieces(std::int64_t index) const;

 private:
  struct Pieces {
    Encoding text;
    std::vector<TextSpan> words;  // of `text`: each word's pieces
  };
  Pieces pieces_of(std::int64_t index) const;

  std::shared_ptr<const TaggedText> text_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  TaggedOptions options_;
  bool space_before_words_;
  std::int64_t room_;
  std::vector<std::int32_t> inside_;  // by tag: label of a word's later pieces
  std::vector<std::vector<std::int32_t>> tags_;
};

// The names of `classes` at labelled positions, for entity_scores(). `classes`: predicted classes,
// one per label, or the labels themselves.
std::vector<std::string> tags_where_labelled(std::span<const std::int32_t> classes,
                                             std::span<const std::int32_t> labels,
                                             const LabelSet& names);

}  // namespace shoal
