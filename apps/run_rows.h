// Rows of text with a class or a score: what `shoal train --task text-classification` learns.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/train/data/dataset.h"
#include "shoal/train/data/labels.h"
#include "shoal/train/data/tokenizer/tokenizer.h"
#include "shoal/train/trainer/arguments.h"
#include "shoal/train/trainer/predictions.h"

namespace shoal::app {

class ClassifiedRows {
 public:
  // The classes: of GLUE's task, or of the training file, or what `config` (config.json) names.
  // Reads files, but no more of them than labels.
  ClassifiedRows(const DataArguments& data, const nlohmann::json& config);

  // id2label, label2id, or of scores problem_type.
  void name_labels(nlohmann::json& config) const;
  bool regression() const { return labels_.empty(); }
  // Names of metrics, "accuracy" and so on, and their values.
  std::vector<std::string> metric_names() const;
  nlohmann::ordered_json metrics(const Predictions& predictions) const;

  // The rows of one file, tokenized when they are asked for; what was left out goes to `notices`.
  std::shared_ptr<const Dataset> open(const std::string& path,
                                      std::shared_ptr<const Tokenizer> tokenizer,
                                      std::int64_t max_length, bool may_lack_labels,
                                      std::vector<std::string>& notices) const;

  // index, tab, class or score; a line a sample, under a header, as run_glue writes them.
  std::string text_of(const Predictions& predictions) const;

 private:
  DataArguments data_;
  LabelSet labels_;        // in the data's order; empty: scores
  LabelSet model_labels_;  // in the model's, where that has names of its own
};

}  // namespace shoal::app
