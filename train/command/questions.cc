// --task question-answering: SQuAD files, as in transformers' example run_qa.
#include <algorithm>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/train/command/task_data.h"
#include "shoal/train/tasks/question_answering/answers.h"
#include "shoal/train/tasks/question_answering/squad_features.h"
#include "shoal/train/trainer/log_format.h"

namespace shoal::command {
namespace {

// Splits the interleaved start and end logits of each feature's positions.
std::vector<PredictedAnswer> answers_of(const SquadDataset& dataset, const Predictions& predictions,
                                        const AnswerOptions& options) {
  SHOAL_CHECK(predictions.of_positions && predictions.classes == 2,
              "answers have 2 scores of each position, not {}", predictions.classes);
  std::vector<std::vector<float>> split;
  split.reserve(2 * predictions.samples.size());
  std::vector<AnswerLogits> logits;
  for (const SamplePrediction& feature : predictions.samples) {
    std::vector<float>& start = split.emplace_back();
    std::vector<float>& end = split.emplace_back();
    for (std::size_t i = 0; i + 1 < feature.scores.size(); i += 2) {
      start.push_back(feature.scores[i]);
      end.push_back(feature.scores[i + 1]);
    }
    logits.push_back({start, end});
  }
  return predict_answers(dataset, logits, options);
}

class AnsweredQuestions final : public TaskData {
 public:
  explicit AnsweredQuestions(const DataArguments& data)
      : data_(data),
        options_{.n_best_size = data.n_best_size,
                 .max_answer_length = data.max_answer_length,
                 .version_2_with_negative = data.version_2_with_negative,
                 .null_score_diff_threshold = data.null_score_diff_threshold} {}

  // Two outputs, start and end, which replace the labels that the model had.
  void name_labels(nlohmann::json& config) const override {
    set_labels(config, {});
    config.erase("problem_type");
  }
  LabelsOf labels_of() const override { return LabelsOf::sample; }
  std::vector<std::string> metric_names() const override {
    if (options_.version_2_with_negative) return {"exact", "f1"};
    return {"exact_match", "f1"};
  }

  std::shared_ptr<const Dataset> open(const Opening& opening,
                                      std::vector<std::string>& notices) const override {
    auto file = std::make_shared<SquadFile>(read_squad(
        opening.path, {.version_2_with_negative = options_.version_2_with_negative,
                       .needs_answers = !opening.may_lack_answers,
                       .bad = data_.skip_bad_rows ? BadRecords::skip : BadRecords::stop}));
    note_skipped(notices, opening.path, "questions", file->skipped, file->first_skipped);
    if (opening.limit && std::ssize(file->questions) > *opening.limit) {
      file->questions.resize(static_cast<std::size_t>(*opening.limit));
      file->contexts.resize(static_cast<std::size_t>(file->questions.back().context) + 1);
    }
    auto dataset = std::make_shared<const SquadDataset>(
        std::move(file), *opening.tokenizer,
        SquadFeatureOptions{.max_seq_length = opening.max_length,
                            .doc_stride = data_.doc_stride,
                            .max_query_length = data_.max_query_length,
                            .threads = opening.threads});
    if (!opening.is_shard)
      notices.push_back(fmt::format("{}: {} questions, {} features of at most {} tokens",
                                    opening.path, dataset->file().questions.size(), dataset->size(),
                                    opening.max_length));
    return dataset;
  }

  nlohmann::ordered_json metrics(const Dataset& dataset,
                                 const Predictions& predictions) const override {
    const auto& squad = dynamic_cast<const SquadDataset&>(dataset);
    nlohmann::ordered_json metrics;
    for (const auto& [name, value] :
         squad_metrics(squad.file(), answers_of(squad, predictions, options_),
                       options_.version_2_with_negative))
      metrics[name] = value;
    return metrics;
  }

  std::vector<File> predicted(const Dataset& dataset,
                              const Predictions& predictions) const override {
    return files("predict", dataset, predictions);
  }
  std::vector<File> evaluated(const Dataset& dataset,
                              const Predictions& predictions) const override {
    return files("eval", dataset, predictions);
  }
  std::vector<nlohmann::ordered_json> answers(const Dataset& dataset,
                                              const Predictions& predictions) const override {
    const auto& squad = dynamic_cast<const SquadDataset&>(dataset);
    const std::vector<PredictedAnswer> found = answers_of(squad, predictions, options_);
    std::vector<nlohmann::ordered_json> rows;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto chosen = std::ranges::find(found[i].best, found[i].text, &AnswerCandidate::text);
      const SquadQuestion& question = squad.file().questions[i];
      rows.push_back({{"index", i},
                      {"id", question.id},
                      {"question", question.text},
                      {"prediction", found[i].text},
                      {"probability",
                       chosen == found[i].best.end() ? 0.0 : round_to(chosen->probability, 6)}});
    }
    return rows;
  }

 private:
  std::vector<File> files(const std::string& stage, const Dataset& dataset,
                          const Predictions& predictions) const {
    const auto& squad = dynamic_cast<const SquadDataset&>(dataset);
    const auto answers = answers_of(squad, predictions, options_);
    std::vector<File> files = {
        {stage + "_predictions.json", predictions_json(squad.file(), answers)},
        {stage + "_nbest_predictions.json", nbest_json(squad.file(), answers)}};
    if (options_.version_2_with_negative)
      files.push_back({stage + "_null_odds.json", null_odds_json(squad.file(), answers)});
    return files;
  }

  DataArguments data_;
  AnswerOptions options_;
};

}  // namespace

std::shared_ptr<const TaskData> answered_questions(const DataArguments& data) {
  return std::make_shared<AnsweredQuestions>(data);
}

}  // namespace shoal::command
