// The files of GLUE (Wang et al. 2018) as downloaded: one folder per task, tab-separated, quotation
// marks are plain text. train/metrics/glue.h has the classes and metrics.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/labels.h"
#include "shoal/train/data/records.h"
#include "shoal/train/metrics/glue.h"
#include "shoal/train/tasks/classification/text_dataset.h"

namespace shoal {

enum class GlueSplit { train, validation, test };

// One file, with the name of its split in Hugging Face's `glue`: "validation", or for MNLI
// "validation_matched" and "validation_mismatched".
struct GlueFile {
  std::string part, path;
};

// Finds train.tsv, dev.tsv and test.tsv in `directory` or in the task's folder below it (CoLA,
// SST-2, ...). MNLI has dev_matched.tsv and dev_mismatched.tsv, and the same for test. Also finds
// .jsonl and .csv, and MRPC's msr_paraphrase_train.txt and msr_paraphrase_test.txt. Throws
// not_found with the names it tried.
std::vector<GlueFile> glue_files(const std::string& directory, const GlueTask& task,
                                 GlueSplit split);

// Selects the task's columns from a file's columns (the fields of the first line or of JSON
// records). Supports the official names, those of Hugging Face's data set (sentence1, label, ...),
// and files without a header: CoLA's official four columns, or the texts followed by the label.
// Throws not_found with the present and the wanted columns. A file without labels gives an empty
// label column.
struct GlueLayout {
  TextColumns columns;
  std::vector<std::string> header = {};  // column names if the file has no header
};
GlueLayout glue_layout(const std::string& path, const GlueTask& task,
                       const std::vector<std::string>& there);

struct GlueOptions {
  std::int64_t max_seq_length = 128;
  bool needs_labels = true;  // train and validation: true; a test set may have none
  BadRecords bad = BadRecords::stop;
  LabelSet model_labels = {};  // if the model orders the same classes differently
};

// Classes are numbered as in the task unless model_labels differs; STS-B has scores from 0 to 5.
std::shared_ptr<const TextClassificationDataset> open_glue(
    const std::string& path, const GlueTask& task, std::shared_ptr<const Tokenizer> tokenizer,
    const GlueOptions& options = {});

}  // namespace shoal
