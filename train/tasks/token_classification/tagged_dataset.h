// Tagged words as model inputs, as run_ner makes them: each word is tokenized by itself, its tag
// stands at its first piece.
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
  std::vector<std::int32_t> model_ids = {};  // of each tag, where the model's order is another
  // A word's other pieces get its tag too, B- made I- where that is a tag; else kIgnoreLabel.
  bool label_all_tokens = false;
  std::int64_t max_seq_length = 128;  // longer sentences are cut at the right
};

// Sample::labels are as long as input_ids; special tokens have kIgnoreLabel, and so has everything
// where the text was read without tags. Byte-level BPE sees each word after a space.
class TaggedDataset final : public Dataset {
 public:
  // A tag that is none of the labels: corrupt_data with file and line.
  TaggedDataset(std::shared_ptr<const TaggedText> text, std::shared_ptr<const Tokenizer> tokenizer,
                const TaggedOptions& options);
  std::int64_t size() const override { return static_cast<std::int64_t>(text_->sentences.size()); }
  Sample get(std::int64_t index) const override;
  // Where in the sample each word's first piece stands; words that were cut off, or that the
  // tokenizer makes nothing of, have none.
  std::vector<std::int64_t> first_pieces(std::int64_t index) const;

 private:
  struct Pieces {
    Encoding text;
    std::vector<TextSpan> words;  // of text, each word's pieces
  };
  Pieces pieces_of(std::int64_t index) const;

  std::shared_ptr<const TaggedText> text_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  TaggedOptions options_;
  bool space_before_words_;
  std::int64_t room_;
  std::vector<std::int32_t> inside_;  // of each tag, what a word's later pieces get
  std::vector<std::vector<std::int32_t>> tags_;
};

// The tags where there is a label, for entity_scores(): of the predicted classes (as many as
// labels), or of the labels themselves.
std::vector<std::string> tags_where_labelled(std::span<const std::int32_t> classes,
                                             std::span<const std::int32_t> labels,
                                             const LabelSet& names);

}  // namespace shoal
