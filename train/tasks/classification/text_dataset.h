// Rows of one or two texts with a class or a score, as run_glue reads them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/train/data/dataset.h"
#include "shoal/train/data/labels.h"
#include "shoal/train/data/records.h"
#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

struct TextColumns {
  std::string first;
  std::string second = {};  // empty: one text per row
  std::string label = {};   // empty: rows have no label
};

// Chooses as run_glue: the label is "label"; the texts are "sentence1" and "sentence2", otherwise
// the first two other columns, or the only one. Throws corrupt_data if there is no row, and
// invalid_argument if JSON lines leave the order of two texts undefined.
TextColumns default_columns(const RecordFile& rows);

// Determines a file's classes by run_glue's rule. If all labels are numbers and not all are whole,
// they are scores, and the set is empty. Otherwise they are classes: whole numbers sorted by value,
// texts sorted by code point. A text in JSON is not a number. Rows without a label are ignored.
// Throws corrupt_data if JSON labels are texts in one row and numbers in another. Call it once, on
// the training file.
LabelSet discover_labels(const RecordFile& rows, const std::string& column);

struct TextClassificationOptions {
  TextColumns columns;
  LabelSet labels = {};                      // empty: labels are scores
  std::vector<std::int32_t> model_ids = {};  // by class, if the model orders classes differently
  double least = 0, most = 0;                // bounds of scores, if least < most
  bool may_lack_labels = false;              // an empty label and "-1" mean no label
  std::int64_t max_seq_length = 128;
  BadRecords bad = BadRecords::stop;
};

// The constructor reads every label; get() tokenizes texts. A sample's labels hold its class, or
// kIgnoreLabel. With scores, `values` holds the score (NaN: none) and labels are empty.
class TextClassificationDataset final : public Dataset {
 public:
  // A row is bad if its label is not a class, not a number or out of range. A bad row throws
  // corrupt_data with file and line, or is skipped and counted.
  TextClassificationDataset(std::shared_ptr<const RecordFile> rows,
                            std::shared_ptr<const Tokenizer> tokenizer,
                            const TextClassificationOptions& options);
  std::int64_t size() const override { return static_cast<std::int64_t>(rows_.size()); }
  Sample get(std::int64_t index) const override;

  bool is_regression() const { return options_.labels.empty(); }
  const LabelSet& labels() const { return options_.labels; }
  bool has_labels() const { return has_labels_; }  // true if any row has a label
  // Skipped rows, including those that the file skipped, and the first reason.
  std::int64_t skipped() const { return file_->skipped() + skipped_; }
  const std::string& first_skipped() const;

 private:
  struct Row {
    std::int64_t record;
    std::int32_t label;
    float score;
  };
  // `quiet`: returns nullopt instead of throwing.
  std::optional<Row> read(std::int64_t record, bool quiet) const;

  std::shared_ptr<const RecordFile> file_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  TextClassificationOptions options_;
  std::vector<Row> rows_;
  bool has_labels_ = false;
  std::int64_t skipped_ = 0;
  std::string first_skipped_;
};

}  // namespace shoal
