// --task token-classification: words with one tag each, as in transformers' example run_ner.
#include <algorithm>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/ordered_fields.h"
#include "shoal/train/command/task_data.h"
#include "shoal/train/data/json_records.h"
#include "shoal/train/data/records.h"
#include "shoal/train/metrics/entities.h"
#include "shoal/train/tasks/token_classification/tagged_dataset.h"

namespace shoal::command {
namespace {

bool has_columns(const std::string& path) { return is_json_path(path) || path.ends_with(".csv"); }

class TaggedWords final : public TaskData {
 public:
  TaggedWords(const DataArguments& data, const nlohmann::json& config)
      : data_(data), model_labels_(labels_in(config)) {
    SHOAL_CHECK(data.text_column_names.size() <= 1,
                "text_column_names has {} names; tagged words have one",
                data.text_column_names.size());
    if (auto given = given_labels(data, tag_fields())) {
      labels_ = std::move(*given);
      return;
    }
    if ((data.train_file.empty() || data.streaming) && !model_labels_.empty()) {
      labels_ = model_labels_;
      return;
    }
    if (data.streaming) throw no_labels_of_a_stream(data, "tags");
    const std::string& path = !data.train_file.empty() ? data.train_file : data.validation_file;
    if (path.empty())
      throw Error(ErrorCode::invalid_argument,
                  "nothing names the tags: the model has no id2label, and there is no train_file",
                  "give a train_file, or a model that was trained to tag words");
    labels_ = discover_tags(read(path, false));
    SHOAL_CHECK(!labels_.empty(), "{}: no sentence has a tag", path);
  }

  void name_labels(nlohmann::json& config) const override {
    set_labels(config, names());
    config.erase("problem_type");
  }
  LabelsOf labels_of() const override { return LabelsOf::positions; }
  std::vector<std::string> metric_names() const override {
    if (!data_.return_entity_level_metrics) return {"precision", "recall", "f1", "accuracy"};
    std::vector<std::string> all = {"overall_precision", "overall_recall", "overall_f1",
                                    "overall_accuracy"};
    std::vector<std::vector<std::string>> alone;
    for (const std::string& name : labels_.names()) alone.push_back({name});
    for (const auto& [type, ignored] : entity_scores(alone, alone).types)
      for (const char* value : {"precision", "recall", "f1", "number"})
        all.push_back(type + "_" + value);
    return all;
  }

  std::shared_ptr<const Dataset> open(const Opening& opening,
                                      std::vector<std::string>& notices) const override {
    auto text = std::make_shared<TaggedText>(read(opening.path, opening.may_lack_answers));
    note_skipped(notices, opening.path, "sentences", text->skipped, text->first_skipped);
    if (opening.limit && std::ssize(text->sentences) > *opening.limit)
      text->sentences.resize(static_cast<std::size_t>(*opening.limit));
    TaggedOptions options{.labels = labels_,
                          .label_all_tokens = data_.label_all_tokens,
                          .max_seq_length = opening.max_length};
    if (!model_labels_.empty())
      if (auto ids = labels_.ids_in(model_labels_)) options.model_ids = std::move(*ids);
    return std::make_shared<TaggedDataset>(std::move(text), opening.tokenizer, options);
  }

  nlohmann::ordered_json metrics(const Dataset& /*dataset*/,
                                 const Predictions& predictions) const override {
    const std::vector<std::int64_t> best = predictions.best_classes();
    std::vector<std::vector<std::string>> said, right;
    std::size_t at = 0;
    for (const SamplePrediction& sample : predictions.samples) {
      const std::vector<std::int32_t> classes(
          best.begin() + static_cast<std::ptrdiff_t>(at),
          best.begin() + static_cast<std::ptrdiff_t>(at + sample.labels.size()));
      at += sample.labels.size();
      said.push_back(tags_where_labelled(classes, sample.labels, names()));
      right.push_back(tags_where_labelled(sample.labels, sample.labels, names()));
    }
    const EntityScores scores = entity_scores(said, right);
    OrderedFields metrics;
    const bool each = data_.return_entity_level_metrics;
    if (each)
      for (const auto& [type, score] : scores.types) {
        metrics[type + "_precision"] = score.precision;
        metrics[type + "_recall"] = score.recall;
        metrics[type + "_f1"] = score.f1;
        metrics[type + "_number"] = score.number;
      }
    const std::string prefix = each ? "overall_" : "";
    metrics[prefix + "precision"] = scores.overall.precision;
    metrics[prefix + "recall"] = scores.overall.recall;
    metrics[prefix + "f1"] = scores.overall.f1;
    metrics[prefix + "accuracy"] = scores.accuracy;
    return std::move(metrics).json();
  }

  // One line per sentence, one tag per word; words that were cut off have none.
  std::vector<File> predicted(const Dataset& dataset,
                              const Predictions& predictions) const override {
    const auto& tagged = dynamic_cast<const TaggedDataset&>(dataset);
    const std::vector<std::int64_t> best = predictions.best_classes();
    std::string text;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < predictions.samples.size(); ++i) {
      const char* between = "";
      for (const std::int64_t place : tagged.first_pieces(static_cast<std::int64_t>(i))) {
        text += between + names().name(best.at(begin + static_cast<std::size_t>(place)));
        between = " ";
      }
      text += "\n";
      begin += predictions.samples[i].scores.size() / static_cast<std::size_t>(predictions.classes);
    }
    return {{"predictions.txt", std::move(text)}};
  }

  std::vector<nlohmann::ordered_json> answers(const Dataset& dataset,
                                              const Predictions& predictions) const override {
    const auto& tagged = dynamic_cast<const TaggedDataset&>(dataset);
    const auto classes = static_cast<std::size_t>(predictions.classes);
    std::vector<nlohmann::ordered_json> rows;
    for (const SamplePrediction& sample : predictions.samples) {
      const auto index = std::ssize(rows);
      nlohmann::ordered_json tags = nlohmann::ordered_json::array(), shares = tags;
      for (const std::int64_t place : tagged.first_pieces(index)) {
        const auto scores =
            std::span(sample.scores).subspan(static_cast<std::size_t>(place) * classes, classes);
        const auto best = std::ranges::max_element(scores) - scores.begin();
        tags.push_back(names().name(best));
        shares.push_back(probabilities(scores)[static_cast<std::size_t>(best)]);
      }
      rows.push_back({{"index", index},
                      {"words", tagged.words_with_pieces(index)},
                      {"prediction", std::move(tags)},
                      {"probability", std::move(shares)}});
    }
    return rows;
  }

 private:
  // Labels in the order of the model's head.
  const LabelSet& names() const {
    const bool as_the_model = !model_labels_.empty() && labels_.ids_in(model_labels_);
    return as_the_model ? model_labels_ : labels_;
  }

  // Fields that may contain a row's tags.
  std::vector<std::string> tag_fields() const {
    if (data_.label_column_name != "label") return {data_.label_column_name};
    return {data_.task_name.empty() ? "ner_tags" : data_.task_name + "_tags", "tags", "labels"};
  }

  // For a file to predict: true if the last column of the first word is a known tag.
  bool has_tag_column(const std::string& path) const {
    const std::vector<std::string> columns = first_word_columns(path);
    return columns.size() > 1 && labels_.find(columns.back());
  }

  TaggedText read(const std::string& path, bool may_lack_tags) const {
    TaggedTextOptions options{.bad = data_.skip_bad_rows ? BadRecords::skip : BadRecords::stop};
    if (!has_columns(path)) {
      options.has_tags = !may_lack_tags || has_tag_column(path);
      return read_tagged_text(path, options);
    }
    const RecordFile rows(path, {.bad = options.bad});
    const std::vector<std::string>& there = rows.columns();
    const auto pick = [&](const std::string& asked, std::vector<std::string> usual) {
      if (!asked.empty()) usual = {asked};
      for (const std::string& name : usual)
        if (std::find(there.begin(), there.end(), name) != there.end()) return name;
      return usual[0];  // the reader reports that it is missing
    };
    options.words_field = pick(data_.text_column_names.empty() ? "" : data_.text_column_names[0],
                               {"tokens", "words"});
    options.tags_field = pick("", tag_fields());
    options.has_tags =
        !may_lack_tags || std::find(there.begin(), there.end(), options.tags_field) != there.end();
    words_.check(path, {options.words_field});
    if (options.has_tags) tags_.check(path, {options.tags_field});
    return read_tagged_rows(rows, options);
  }

  DataArguments data_;
  SameColumns words_, tags_;
  LabelSet labels_;        // in the data's order
  LabelSet model_labels_;  // in the model's order, if the model names them
};

}  // namespace

std::shared_ptr<const TaskData> tagged_words(const DataArguments& data,
                                             const nlohmann::json& config) {
  return std::make_shared<TaggedWords>(data, config);
}

}  // namespace shoal::command
