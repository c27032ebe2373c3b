// --task text-classification: rows of one or two texts with a class or score, as in transformers'
// example run_glue.

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/io/ordered_fields.h"
#include "shoal/train/command/task_data.h"
#include "shoal/train/data/records.h"
#include "shoal/train/metrics/classification.h"
#include "shoal/train/metrics/glue.h"
#include "shoal/train/tasks/classification/glue.h"
#include "shoal/train/tasks/classification/text_dataset.h"
#include "shoal/train/trainer/log_format.h"

namespace shoal::command {
namespace {

std::shared_ptr<RecordFile> open_records(const DataArguments& data, const std::string& path) {
  return std::make_shared<RecordFile>(
      path, RecordOptions{.columns = data.column_names,
                          .bad = data.skip_bad_rows ? BadRecords::skip : BadRecords::stop});
}

TextColumns columns_of(const DataArguments& data, const RecordFile& rows, const SameColumns& same) {
  TextColumns columns;
  rows.need_rows();
  if (data.text_column_names.empty()) {
    SHOAL_CHECK(data.label_column_name == "label",
                "label_column_name is {}; give text_column_names too", data.label_column_name);
    columns = default_columns(rows);
    std::vector<std::string> texts = {columns.first};
    if (!columns.second.empty()) texts.push_back(columns.second);
    same.check(rows.path(), texts);
    return columns;
  }
  SHOAL_CHECK(data.text_column_names.size() <= 2, "text_column_names has {} names; one or two",
              data.text_column_names.size());
  columns.first = data.text_column_names[0];
  if (data.text_column_names.size() == 2) columns.second = data.text_column_names[1];
  const std::vector<std::string>& there = rows.columns();
  if (std::find(there.begin(), there.end(), data.label_column_name) != there.end())
    columns.label = data.label_column_name;
  return columns;
}

void need_label(const TextColumns& columns, const RecordFile& rows, const DataArguments& data) {
  if (columns.label.empty())
    rows.need_column(data.label_column_name,
                     "give label_column_name, or column_names where the file has no header line");
}

class ClassifiedRows final : public TaskData {
 public:
  ClassifiedRows(const DataArguments& data, const nlohmann::json& config);
  void name_labels(nlohmann::json& config) const override;
  LabelsOf labels_of() const override { return LabelsOf::sample; }
  std::vector<std::string> metric_names() const override;
  nlohmann::ordered_json metrics(const Dataset& dataset,
                                 const Predictions& predictions) const override;
  std::shared_ptr<const Dataset> open(const Opening& opening,
                                      std::vector<std::string>& notices) const override;
  // "index<tab>class or score" per sample, under a header, as run_glue writes them.
  std::vector<File> predicted(const Dataset& dataset,
                              const Predictions& predictions) const override;
  std::vector<nlohmann::ordered_json> answers(const Dataset& dataset,
                                              const Predictions& predictions) const override;

 private:
  bool regression() const { return labels_.empty(); }
  // Labels in the order of the model's head.
  const LabelSet& head_labels() const {
    const bool as_the_model = !model_labels_.empty() && labels_.ids_in(model_labels_);
    return as_the_model ? model_labels_ : labels_;
  }

  DataArguments data_;
  SameColumns columns_;
  LabelSet labels_;        // in the order of the data; empty: regression
  LabelSet model_labels_;  // in the model's order, if the model names them
};

ClassifiedRows::ClassifiedRows(const DataArguments& data, const nlohmann::json& config)
    : data_(data), model_labels_(labels_in(config)) {
  if (!data.task_name.empty()) {
    const GlueTask& task = glue_task(data.task_name);
    labels_ = LabelSet({task.labels.begin(), task.labels.end()});
    return;
  }
  if (auto given = given_labels(data, {data.label_column_name, "label"})) {
    labels_ = std::move(*given);
    return;
  }
  const bool reads_train_file = !data.train_file.empty() && !data.streaming;
  if (!reads_train_file && !model_labels_.empty()) {
    labels_ = model_labels_;
    return;
  }
  if (!reads_train_file &&
      field_or(config, "problem_type", nlohmann::json(), "config.json") == "regression")
    return;
  if (data.streaming) throw no_labels_of_a_stream(data, "classes");
  const std::string& path = !data.train_file.empty() ? data.train_file : data.validation_file;
  if (path.empty())
    throw Error(ErrorCode::invalid_argument,
                "nothing names the classes: the model has no id2label, and there is no train_file",
                "give a train_file, or a model that was trained to classify");
  const auto rows = open_records(data, path);
  const TextColumns columns = columns_of(data, *rows, columns_);
  need_label(columns, *rows, data);
  labels_ = discover_labels(*rows, columns.label);
}

void ClassifiedRows::name_labels(nlohmann::json& config) const {
  if (regression()) {
    set_labels(config, LabelSet(std::vector<std::string>{"LABEL_0"}));
    config["problem_type"] = "regression";
    return;
  }
  config["problem_type"] = "single_label_classification";
  set_labels(config, head_labels());
}

std::vector<std::string> ClassifiedRows::metric_names() const {
  if (!data_.task_name.empty()) {
    const auto& names = glue_task(data_.task_name).metrics;
    std::vector<std::string> all(names.begin(), names.end());
    if (all.size() > 1) all.emplace_back("combined_score");
    return all;
  }
  if (regression()) return {"pearson", "spearmanr"};
  return {"accuracy"};
}

nlohmann::ordered_json ClassifiedRows::metrics(const Dataset& /*dataset*/,
                                               const Predictions& predictions) const {
  // glue_metrics() takes classes as whole numbers. Samples without a label are ignored.
  std::vector<double> said, right;
  const std::vector<std::int64_t> best =
      regression() ? std::vector<std::int64_t>() : predictions.best_classes();
  for (std::size_t i = 0; i < predictions.samples.size(); ++i) {
    const SamplePrediction& one = predictions.samples[i];
    if (regression() && !one.values.empty() && !std::isnan(one.values[0])) {
      said.push_back(static_cast<double>(one.scores.at(0)));
      right.push_back(static_cast<double>(one.values[0]));
    } else if (!regression() && !one.labels.empty() && one.labels[0] >= 0) {
      said.push_back(static_cast<double>(best[i]));
      right.push_back(static_cast<double>(one.labels[0]));
    }
  }
  nlohmann::ordered_json metrics;
  if (!data_.task_name.empty()) {
    for (const auto& [name, value] : glue_metrics(glue_task(data_.task_name), said, right))
      metrics[name] = value;
  } else if (regression()) {
    metrics["pearson"] = pearson_correlation(said, right);
    metrics["spearmanr"] = spearman_correlation(said, right);
  } else {
    const std::vector<std::int64_t> a(said.begin(), said.end()), b(right.begin(), right.end());
    metrics["accuracy"] = accuracy(a, b);
  }
  return metrics;
}

std::shared_ptr<const Dataset> ClassifiedRows::open(const Opening& opening,
                                                    std::vector<std::string>& notices) const {
  const BadRecords bad = data_.skip_bad_rows ? BadRecords::skip : BadRecords::stop;
  std::shared_ptr<const TextClassificationDataset> rows;
  if (!data_.task_name.empty()) {
    rows = open_glue(opening.path, glue_task(data_.task_name), opening.tokenizer,
                     {.max_seq_length = opening.max_length,
                      .needs_labels = !opening.may_lack_answers,
                      .bad = bad,
                      .model_labels = model_labels_});
  } else {
    auto file = open_records(data_, opening.path);
    TextClassificationOptions options{.columns = columns_of(data_, *file, columns_),
                                      .labels = labels_,
                                      .may_lack_labels = opening.may_lack_answers,
                                      .max_seq_length = opening.max_length,
                                      .bad = bad};
    if (!opening.may_lack_answers) need_label(options.columns, *file, data_);
    if (!regression() && !model_labels_.empty())
      if (auto ids = labels_.ids_in(model_labels_)) options.model_ids = std::move(*ids);
    rows = std::make_shared<TextClassificationDataset>(std::move(file), opening.tokenizer, options);
  }
  note_skipped(notices, opening.path, "rows", rows->skipped(), rows->first_skipped());
  return first_samples(std::move(rows), opening.limit);
}

std::vector<TaskData::File> ClassifiedRows::predicted(const Dataset& /*dataset*/,
                                                      const Predictions& predictions) const {
  std::string text = "index\tprediction\n";
  if (regression()) {
    for (std::size_t i = 0; i < predictions.samples.size(); ++i)
      text += fmt::format("{}\t{:3.3f}\n", i, predictions.samples[i].scores.at(0));
  } else {
    const std::vector<std::int64_t> best = predictions.best_classes();
    for (std::size_t i = 0; i < best.size(); ++i)
      text += fmt::format("{}\t{}\n", i, head_labels().name(best[i]));
  }
  return {{"predict_results.txt", std::move(text)}};
}

std::vector<nlohmann::ordered_json> ClassifiedRows::answers(const Dataset& /*dataset*/,
                                                            const Predictions& predictions) const {
  std::vector<nlohmann::ordered_json> rows;
  for (const SamplePrediction& sample : predictions.samples) {
    nlohmann::ordered_json& row = rows.emplace_back();
    row["index"] = rows.size() - 1;
    if (regression()) {
      row["prediction"] = round_to(static_cast<double>(sample.scores.at(0)), 6);
      continue;
    }
    const std::vector<double> shares = probabilities(sample.scores);
    const auto best = std::ranges::max_element(sample.scores) - sample.scores.begin();
    row["prediction"] = head_labels().name(best);
    row["probability"] = shares[static_cast<std::size_t>(best)];
    OrderedFields all;
    for (std::size_t i = 0; i < shares.size(); ++i)
      all[head_labels().name(static_cast<std::int64_t>(i))] = shares[i];
    row["probabilities"] = std::move(all).json();
  }
  return rows;
}

}  // namespace

std::shared_ptr<const TaskData> classified_rows(const DataArguments& data,
                                                const nlohmann::json& config) {
  return std::make_shared<ClassifiedRows>(data, config);
}

}  // namespace shoal::command
