// The files of samples that a task learns from: rows with a class, questions, tagged words.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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

namespace shoal::app {

// How one file is opened.
struct Opening {
  std::string path;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::int64_t max_length = 0;          // tokens of a sample
  bool may_lack_answers = false;        // a file to predict: labels, answers, tags may be missing
  bool is_shard = false;                // of a stream: what was left out is all that is told
  std::optional<std::int64_t> limit{};  // the first so many rows, questions, sentences
  int threads = 1;                      // to tokenize with
};

// Of one task and its options. What a dataset is asked about must be one that open() gave.
class TaskData {
 public:
  virtual ~TaskData() = default;
  // num_labels, id2label, ... of config.json, as the data wants the head.
  virtual void name_labels(nlohmann::json& config) const = 0;
  virtual LabelsOf labels_of() const = 0;
  // Names of metrics, "accuracy" and so on, and their values.
  virtual std::vector<std::string> metric_names() const = 0;
  virtual nlohmann::ordered_json metrics(const Dataset& dataset,
                                         const Predictions& predictions) const = 0;
  // What was left out goes to `notices`.
  virtual std::shared_ptr<const Dataset> open(const Opening& opening,
                                              std::vector<std::string>& notices) const = 0;

  struct File {
    std::string name, text;
  };
  // What do_predict writes; the first file is the one to name. And what an evaluation does.
  virtual std::vector<File> predicted(const Dataset& dataset,
                                      const Predictions& predictions) const = 0;
  virtual std::vector<File> evaluated(const Dataset& /*dataset*/,
                                      const Predictions& /*predictions*/) const {
    return {};
  }
};

// Null: the task learns from text without more. Reads files, but no more of them than labels;
// `config` is the model's config.json.
std::shared_ptr<const TaskData> make_task_data(TaskKind kind, const DataArguments& data,
                                               const nlohmann::json& config);

// Of the three tasks, each in its source (run_rows.cc, run_questions.cc, run_tags.cc).
std::shared_ptr<const TaskData> classified_rows(const DataArguments& data,
                                                const nlohmann::json& config);
std::shared_ptr<const TaskData> answered_questions(const DataArguments& data);
std::shared_ptr<const TaskData> tagged_words(const DataArguments& data,
                                             const nlohmann::json& config);

// The classes that config.json names, unless they are LABEL_0, LABEL_1, ...: then none.
LabelSet labels_in(const nlohmann::json& config);
// The classes that need no look at the rows: label_list, or with streaming what a dataset_info.json
// (of Hugging Face's datasets) beside the shards says of the first of `columns` that it knows. No
// classes: scores. Nothing: neither says.
std::optional<LabelSet> given_labels(const DataArguments& data,
                                     const std::vector<std::string>& columns);
// What to throw where a stream's classes ("classes", "tags") are known from nowhere.
Error no_labels_of_a_stream(const DataArguments& data, const char* what);
// num_labels, id2label and label2id say these.
void set_labels(nlohmann::json& config, const LabelSet& labels);
// The first `count` samples; absent: all. Null stays null.
std::shared_ptr<const Dataset> first_samples(std::shared_ptr<const Dataset> all,
                                             std::optional<std::int64_t> count);
// "train.tsv: 3 rows are left out, the first because of: ..."; nothing where none is.
void note_skipped(std::vector<std::string>& notices, const std::string& path, const char* what,
                  std::int64_t skipped, const std::string& first);

}  // namespace shoal::app
