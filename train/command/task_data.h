// The sample files of a task: rows with a class, questions, tagged words.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/batch.h"
#include "shoal/train/data/dataset.h"
#include "shoal/train/data/labels.h"
#include "shoal/train/data/tokenizer/tokenizer.h"
#include "shoal/train/tasks/make_task.h"
#include "shoal/train/trainer/arguments.h"
#include "shoal/train/trainer/predictions.h"

namespace shoal::command {

// Options for opening one file.
struct Opening {
  std::string path;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::int64_t max_length = 0;          // tokens per sample
  bool may_lack_answers = false;        // a file to predict: labels, answers or tags may be missing
  bool trains = false;                  // the training set
  bool is_shard = false;                // shard of a stream: only skipped rows are reported
  std::optional<std::int64_t> limit{};  // only the first rows, questions or sentences
  int threads = 1;                      // for tokenizing
};

// One task with its options. Datasets passed to its functions must come from its open().
class TaskData {
 public:
  virtual ~TaskData() = default;
  // Sets num_labels, id2label, ... of config.json for the data.
  virtual void name_labels(nlohmann::json& config) const = 0;
  virtual LabelsOf labels_of() const = 0;
  // Names of metrics such as "accuracy", and their values.
  virtual std::vector<std::string> metric_names() const = 0;
  virtual nlohmann::ordered_json metrics(const Dataset& dataset,
                                         const Predictions& predictions) const = 0;
  // Reports skipped rows in `notices`.
  virtual std::shared_ptr<const Dataset> open(const Opening& opening,
                                              std::vector<std::string>& notices) const = 0;

  struct File {
    std::string name, text;
  };
  // Files that do_predict writes, the main one first; and files that an evaluation writes.
  virtual std::vector<File> predicted(const Dataset& dataset,
                                      const Predictions& predictions) const = 0;
  // What `shoal predict` prints of each sample, in order: {"index": 0, "prediction": "fine",
  // "probability": 0.98, ...}.
  virtual std::vector<nlohmann::ordered_json> answers(const Dataset& dataset,
                                                      const Predictions& predictions) const = 0;
  virtual std::vector<File> evaluated(const Dataset& /*dataset*/,
                                      const Predictions& /*predictions*/) const {
    return {};
  }
};

// Null if the task learns from plain text. Reads files only to find labels; `config` is the model's
// config.json. `generates`: predictions are texts (predict_with_generate).
std::shared_ptr<const TaskData> make_task_data(TaskKind kind, const DataArguments& data,
                                               const nlohmann::json& config,
                                               std::shared_ptr<const Tokenizer> tokenizer,
                                               bool generates);

// One per task; defined in rows.cc, questions.cc, tags.cc and pairs.cc.
std::shared_ptr<const TaskData> classified_rows(const DataArguments& data,
                                                const nlohmann::json& config);
std::shared_ptr<const TaskData> answered_questions(const DataArguments& data);
std::shared_ptr<const TaskData> tagged_words(const DataArguments& data,
                                             const nlohmann::json& config);
struct PairedTextsOptions {
  const DataArguments& data;
  std::shared_ptr<const Tokenizer> tokenizer;
  bool is_mbart = false;  // texts have a language
  bool generates = false;
};
std::shared_ptr<const TaskData> paired_texts(TaskKind kind, const PairedTextsOptions& options);

// The classes named in config.json; empty if they are LABEL_0, LABEL_1, ...
LabelSet labels_in(const nlohmann::json& config);
// Classes known without reading rows: label_list or, with streaming, the first known column of
// `columns` in a dataset_info.json (of Hugging Face's datasets) beside the shards. An empty set
// means scores. Nullopt: unknown.
std::optional<LabelSet> given_labels(const DataArguments& data,
                                     const std::vector<std::string>& columns);
// The error if a stream's classes (`what`: "classes", "tags") are unknown.
Error no_labels_of_a_stream(const DataArguments& data, const char* what);
// Sets num_labels, id2label and label2id.
void set_labels(nlohmann::json& config, const LabelSet& labels);
// Softmax of one sample's or position's scores, rounded to six digits.
std::vector<double> probabilities(std::span<const float> scores);
// The first `count` samples; nullopt: all. Null stays null.
std::shared_ptr<const Dataset> first_samples(std::shared_ptr<const Dataset> all,
                                             std::optional<std::int64_t> count);
struct SplitRows {
  std::shared_ptr<const Dataset> training, validation;
};
// Takes validation_split_percentage of the rows, at least one, for validation. They are drawn at
// random, since rows are often sorted by class. Equal files give equal parts in every run, whatever
// its seed. Each part keeps the order of the file. Adds the numbers of rows to the notices. Throws
// invalid_argument if no row is left for training.
SplitRows split_rows(const std::shared_ptr<const Dataset>& all, const DataArguments& data,
                     std::vector<std::string>& notices);
// The columns that a run takes its texts or words from. Every file and every shard of a stream must
// have the same columns, as in `datasets`. Otherwise a column that only a later file has would be
// silently ignored, or change what the model reads. Thread-safe.
class SameColumns {
 public:
  // Throws invalid_argument with both files if an earlier call had other columns.
  void check(const std::string& path, const std::vector<std::string>& columns) const;

 private:
  mutable std::mutex mutex_;
  mutable std::string path_;  // of the first file; empty: there was none
  mutable std::vector<std::string> columns_;
};
// Adds "train.tsv: 3 rows are left out, the first because of: ..."; adds nothing if no row was
// skipped.
void note_skipped(std::vector<std::string>& notices, const std::string& path, const char* what,
                  std::int64_t skipped, const std::string& first);

}  // namespace shoal::command
