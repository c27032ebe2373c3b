// Rows of text, or of two texts, with a class or a score: what run_glue trains on.
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
  std::string second = {};  // empty: one text a row
  std::string label = {};   // empty: rows have none
};

// As run_glue chooses: the label is "label"; the texts are "sentence1" and "sentence2", else the
// first two other columns, or the one there is. invalid_argument where JSON lines leave the order
// of two texts open.
TextColumns default_columns(const RecordFile& rows);

// What the labels of a file are. run_glue's rule: numbers that are not all whole are scores (no
// classes); everything else are classes, in LabelSet::discover's order. Name them once, from the
// training file.
LabelSet discover_labels(const RecordFile& rows, const std::string& column);

struct TextClassificationOptions {
  TextColumns columns;
  LabelSet labels = {};                      // empty: labels are scores
  std::vector<std::int32_t> model_ids = {};  // of each class, where the model's order is another
  double least = 0, most = 0;                // of scores, where least < most
  bool may_lack_labels = false;              // an empty label and "-1" mean none
  std::int64_t max_seq_length = 128;
  BadRecords bad = BadRecords::stop;
};

// Every label is read when it is made; texts are tokenized in get(). A sample's labels hold its
// class, or kIgnoreLabel; of scores `values` holds the score (NaN: none), and labels are empty.
class TextClassificationDataset final : public Dataset {
 public:
  // Labels that are no class, no number or out of range are bad records: corrupt_data with file
  // and line, or left out and counted.
  TextClassificationDataset(std::shared_ptr<const RecordFile> rows,
                            std::shared_ptr<const Tokenizer> tokenizer,
                            const TextClassificationOptions& options);
  std::int64_t size() const override { return static_cast<std::int64_t>(rows_.size()); }
  Sample get(std::int64_t index) const override;

  bool is_regression() const { return options_.labels.empty(); }
  const LabelSet& labels() const { return options_.labels; }
  bool has_labels() const { return has_labels_; }  // of any row
  // Rows left out, those of the file included, and what was wrong with the first of them.
  std::int64_t skipped() const { return file_->skipped() + skipped_; }
  const std::string& first_skipped() const;

 private:
  struct Row {
    std::int64_t record;
    std::int32_t label;
    float score;
  };
  // `quiet`: nothing where it would throw.
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
