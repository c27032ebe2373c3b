// Line-by-line text: each sample is one line, as with run_mlm's line_by_line.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shoal/train/data/dataset.h"
#include "shoal/train/data/token_file.h"
#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// The documents of a file prepared with add_special_tokens, each truncated to `max_length` tokens
// while keeping the template's special tokens. Skips documents without text. (For documents
// concatenated into blocks, use a CausalLmDataset of the same file.)
class LineDataset final : public Dataset {
 public:
  // Rejects a file without text (unless `may_be_empty`), ids not below `vocab_size` (0: unchecked)
  // and a `max_length` that leaves no room for text.
  LineDataset(std::shared_ptr<const TokenFile> file, const SequenceTemplate& sequence,
              std::int64_t max_length, std::int64_t vocab_size, bool may_be_empty = false);
  std::int64_t size() const override { return static_cast<std::int64_t>(lines_.size()); }
  Sample get(std::int64_t index) const override;

 private:
  std::shared_ptr<const TokenFile> file_;
  std::vector<std::int64_t> lines_;  // documents with text
  std::int64_t max_length_;
  std::int64_t tail_ = 0;  // special tokens after the text
};

}  // namespace shoal
