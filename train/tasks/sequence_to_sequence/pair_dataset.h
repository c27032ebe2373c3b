// Rows with a source and a target as model inputs, as in transformers' run_summarization and
// run_translation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shoal/train/data/dataset.h"
#include "shoal/train/data/records.h"
#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// Names of the fields. `within`: the field with an object that has both, as in
// {"translation": {"en": "Good.", "de": "Gut."}}; empty: they are fields of the row.
struct PairColumns {
  std::string source, target, within = {};
};

struct PairOptions {
  PairColumns columns;
  std::string source_prefix = {};                                  // put before each source
  std::int64_t max_source_length = 1024, max_target_length = 128;  // tokens; longer texts are cut
  // Tokens around a text; they may differ in language (language_template.h).
  SequenceTemplate source_template = {}, target_template = {};
  bool may_lack_targets = false;
  BadRecords bad = BadRecords::stop;
};

// Sample::labels are the target's tokens, of a length of their own (LabelsOf::sequence). A row
// without a target has none.
class PairDataset final : public Dataset {
 public:
  // A row that lacks a text is bad: it throws corrupt_data or not_found with file and line, or is
  // skipped and counted.
  PairDataset(std::shared_ptr<const RecordFile> file, std::shared_ptr<const Tokenizer> tokenizer,
              PairOptions options);
  std::int64_t size() const override { return std::ssize(rows_); }
  Sample get(std::int64_t index) const override;
  // Counts the rows that the file skipped, too.
  std::int64_t skipped() const { return file_->skipped() + skipped_; }
  const std::string& first_skipped() const {
    return file_->skipped() > 0 ? file_->first_skipped() : first_skipped_;
  }

 private:
  struct Texts {
    std::string source;
    std::optional<std::string> target;
  };
  Texts texts_of(std::int64_t record) const;
  std::vector<TokenId> tokens_of(const std::string& text, const SequenceTemplate& sequence,
                                 std::int64_t max_length) const;

  std::shared_ptr<const RecordFile> file_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  PairOptions options_;
  std::vector<std::int64_t> rows_;  // records of the file
  std::int64_t skipped_ = 0;
  std::string first_skipped_;
};

}  // namespace shoal
