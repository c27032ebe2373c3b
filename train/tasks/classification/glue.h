// The files of GLUE (Wang et al. 2018), as its download has them: a folder a task, tab-separated,
// quotation marks are text. Classes and metrics are train/metrics/glue.h's.
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

// One file, with the name that Hugging Face's `glue` gives its part: "validation", or MNLI's
// "validation_matched" and "validation_mismatched".
struct GlueFile {
  std::string part, path;
};

// train.tsv, dev.tsv, test.tsv (MNLI: dev_matched.tsv and dev_mismatched.tsv, likewise test) in
// `directory` or in its folder of the task (CoLA, SST-2, ...); also .jsonl and .csv, and MRPC's
// msr_paraphrase_train.txt and msr_paraphrase_test.txt. not_found says what was looked for.
std::vector<GlueFile> glue_files(const std::string& directory, const GlueTask& task,
                                 GlueSplit split);

// Which columns of a file are the task's. The official names, those of Hugging Face's data set
// (sentence1, label, ...), and headerless files: CoLA's official four columns, or the texts and
// then the label. not_found names what is there and what is wanted. A file without labels gives an
// empty label column.
struct GlueLayout {
  TextColumns columns;
  std::vector<std::string> header = {};  // of a file that has none; else empty
};
GlueLayout glue_layout(const std::string& path, const GlueTask& task);

struct GlueOptions {
  std::int64_t max_seq_length = 128;
  bool needs_labels = true;  // train and validation; a test set may have none
  BadRecords bad = BadRecords::stop;
  LabelSet model_labels = {};  // where the model's order of the same classes counts
};

// Classes are numbered as the task's, unless model_labels says otherwise; STS-B has scores, 0 to 5.
std::shared_ptr<const TextClassificationDataset> open_glue(
    const std::string& path, const GlueTask& task, std::shared_ptr<const Tokenizer> tokenizer,
    const GlueOptions& options = {});

}  // namespace shoal
