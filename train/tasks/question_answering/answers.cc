#include "shoal/train/tasks/question_answering/answers.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/train/metrics/squad.h"

namespace shoal {
namespace {

using nlohmann::ordered_json;

struct Candidate {
  TextSpan bytes;
  float score = 0, start_logit = 0, end_logit = 0;
};

// Positions of the `count` highest logits, highest first.
std::vector<std::int64_t> highest(std::span<const float> logits, std::int64_t count) {
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto before = [&](std::int64_t a, std::int64_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a > b);
  };
  const auto kept = std::min<std::int64_t>(count, static_cast<std::int64_t>(order.size()));
  std::partial_sort(order.begin(), order.begin() + kept, order.end(), before);
  order.resize(static_cast<std::size_t>(kept));
  return order;
}

bool all_numbers(const AnswerLogits& logits, std::int64_t tokens) {
  const auto is_nan = [](float x) { return std::isnan(x); };
  return std::none_of(logits.start.begin(), logits.start.begin() + tokens, is_nan) &&
         std::none_of(logits.end.begin(), logits.end.begin() + tokens, is_nan);
}

Candidate candidate_of(const AnswerLogits& logits, std::int64_t start, std::int64_t end,
                       TextSpan bytes) {
  const float first = logits.start[static_cast<std::size_t>(start)];
  const float last = logits.end[static_cast<std::size_t>(end)];
  return {bytes, first + last, first, last};
}

class Prediction {
 public:
  Prediction(const SquadDataset& dataset, const AnswerOptions& options)
      : dataset_(dataset), options_(options) {}

  void add_feature(const SquadDataset::Feature& feature, AnswerLogits logits) {
    const auto tokens = static_cast<std::size_t>(feature.tokens);
    logits = {logits.start.first(tokens), logits.end.first(tokens)};
    const Candidate null = candidate_of(logits, 0, 0, {});
    if (!null_ || null_->score > null.score) null_ = null;
    const auto ends = highest(logits.end, options_.n_best_size);
    for (const std::int64_t start : highest(logits.start, options_.n_best_size)) {
      for (const std::int64_t end : ends) {
        if (!dataset_.is_context(feature, start) || !dataset_.is_context(feature, end)) continue;
        if (end < start || end - start + 1 > options_.max_answer_length) continue;
        found_.push_back(
            candidate_of(logits, start, end,
                         {dataset_.bytes(feature, start).begin, dataset_.bytes(feature, end).end}));
      }
    }
  }

  PredictedAnswer finish(const std::string& context) {
    const bool version_2 = options_.version_2_with_negative;
    if (version_2) found_.push_back(*null_);
    std::stable_sort(found_.begin(), found_.end(),
                     [](const auto& a, const auto& b) { return a.score > b.score; });
    if (static_cast<std::int64_t>(found_.size()) > options_.n_best_size)
      found_.resize(static_cast<std::size_t>(options_.n_best_size));
    const auto is_null = [](const Candidate& c) { return c.bytes == TextSpan{}; };
    if (version_2 && std::none_of(found_.begin(), found_.end(), is_null)) found_.push_back(*null_);

    PredictedAnswer answer;
    std::vector<double> scores;
    for (const Candidate& candidate : found_) {
      const TextSpan bytes = candidate.bytes;
      const auto length = std::max<std::int64_t>(bytes.end - bytes.begin, 0);
      answer.best.push_back(
          {context.substr(static_cast<std::size_t>(bytes.begin), static_cast<std::size_t>(length)),
           candidate.start_logit, candidate.end_logit, 0});
      scores.push_back(candidate.score);
    }
    // As in utils_qa: "empty" stands in if there is no candidate or only the null answer.
    if (answer.best.empty() || (answer.best.size() == 1 && answer.best[0].text.empty())) {
      answer.best.insert(answer.best.begin(), AnswerCandidate{"empty", 0, 0, 0});
      scores.insert(scores.begin(), 0);
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - most);
    for (std::size_t i = 0; i < scores.size(); ++i) answer.best[i].probability = scores[i] / sum;
    choose(answer);
    return answer;
  }

 private:
  void choose(PredictedAnswer& answer) const {
    if (!options_.version_2_with_negative) {
      answer.text = answer.best[0].text;
      return;
    }
    const auto best = std::find_if(answer.best.begin(), answer.best.end(),
                                   [](const auto& candidate) { return !candidate.text.empty(); });
    if (best == answer.best.end()) return;  // all candidates are empty
    const float difference = null_->score - best->start_logit - best->end_logit;
    answer.null_score_difference = difference;
    if (difference <= options_.null_score_diff_threshold) answer.text = best->text;
  }

  const SquadDataset& dataset_;
  const AnswerOptions& options_;
  std::vector<Candidate> found_;
  std::optional<Candidate> null_;
};

void check_sizes(const SquadFile& file, std::span<const PredictedAnswer> predictions) {
  SHOAL_CHECK(predictions.size() == file.questions.size(), "{} answers for the {} questions of {}",
              predictions.size(), file.questions.size(), file.path);
}

// Formats like Python's json.dumps(value, indent=4), with a final newline.
std::string text_of(const ordered_json& value) { return value.dump(4, ' ', true) + "\n"; }

template <typename Value>
std::string by_id(const SquadFile& file, std::span<const PredictedAnswer> predictions,
                  const Value& value) {
  check_sizes(file, predictions);
  ordered_json object = ordered_json::object();
  for (std::size_t i = 0; i < predictions.size(); ++i)
    object[file.questions[i].id] = value(predictions[i]);
  return text_of(object);
}

struct Sums {
  double exact = 0, f1 = 0;
  std::int64_t count = 0;

  void add(const AnswerScore& score) {
    exact += score.exact_match;
    f1 += score.f1;
    ++count;
  }
  void write(std::map<std::string, double>& metrics, const std::string& prefix,
             const char* exact_name) const {
    const auto all = static_cast<double>(count);
    metrics[prefix + exact_name] = 100 * exact / all;
    metrics[prefix + "f1"] = 100 * f1 / all;
  }
};

AnswerScore score_of(const SquadQuestion& question, const std::string& prediction) {
  std::vector<std::string> accepted;
  for (const SquadAnswer& answer : question.answers) accepted.push_back(answer.text);
  if (!accepted.empty()) return score_answer(prediction, accepted);
  const double right = normalize_answer(prediction).empty() ? 1 : 0;
  return {right, right};
}

}  // namespace

std::vector<PredictedAnswer> predict_answers(const SquadDataset& dataset,
                                             std::span<const AnswerLogits> logits,
                                             const AnswerOptions& options) {
  SHOAL_CHECK(static_cast<std::int64_t>(logits.size()) == dataset.size(),
              "logits of {} features, but there are {}", logits.size(), dataset.size());
  SHOAL_CHECK(options.n_best_size > 0 && options.max_answer_length > 0,
              "n_best_size {} and max_answer_length {} have to be positive", options.n_best_size,
              options.max_answer_length);
  const SquadFile& file = dataset.file();
  std::vector<PredictedAnswer> answers;
  for (std::size_t i = 0; i < file.questions.size(); ++i) {
    Prediction prediction(dataset, options);
    const TextSpan features = dataset.features_of(static_cast<std::int64_t>(i));
    for (std::int64_t f = features.begin; f < features.end; ++f) {
      const SquadDataset::Feature feature = dataset.feature(f);
      const AnswerLogits& given = logits[static_cast<std::size_t>(f)];
      const auto least = static_cast<std::int64_t>(std::min(given.start.size(), given.end.size()));
      SHOAL_CHECK(least >= feature.tokens, "feature {} has {} tokens, but {} logits", f,
                  feature.tokens, least);
      SHOAL_CHECK(all_numbers(given, feature.tokens), "feature {} has logits that are no numbers",
                  f);
      prediction.add_feature(feature, given);
    }
    const auto context = static_cast<std::size_t>(file.questions[i].context);
    answers.push_back(prediction.finish(file.contexts[context]));
  }
  return answers;
}

std::string predictions_json(const SquadFile& file, std::span<const PredictedAnswer> predictions) {
  return by_id(file, predictions, [](const PredictedAnswer& answer) { return answer.text; });
}

std::string nbest_json(const SquadFile& file, std::span<const PredictedAnswer> predictions) {
  return by_id(file, predictions, [](const PredictedAnswer& answer) {
    ordered_json list = ordered_json::array();
    for (const AnswerCandidate& candidate : answer.best)
      list.push_back({{"start_logit", candidate.start_logit},
                      {"end_logit", candidate.end_logit},
                      {"text", candidate.text},
                      {"probability", candidate.probability}});
    return list;
  });
}

std::string null_odds_json(const SquadFile& file, std::span<const PredictedAnswer> predictions) {
  return by_id(file, predictions,
               [](const PredictedAnswer& answer) { return answer.null_score_difference; });
}

std::map<std::string, double> squad_metrics(const SquadFile& file,
                                            std::span<const PredictedAnswer> predictions,
                                            bool version_2_with_negative) {
  check_sizes(file, predictions);
  Sums all, answerable, unanswerable;
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    const SquadQuestion& question = file.questions[i];
    const AnswerScore score = score_of(question, predictions[i].text);
    all.add(score);
    (question.answers.empty() ? unanswerable : answerable).add(score);
  }
  std::map<std::string, double> metrics;
  all.write(metrics, "", version_2_with_negative ? "exact" : "exact_match");
  if (!version_2_with_negative) return metrics;
  metrics["total"] = static_cast<double>(all.count);
  for (const auto& [prefix, sums] :
       {std::pair{"HasAns_", &answerable}, std::pair{"NoAns_", &unanswerable}}) {
    if (sums->count == 0) continue;
    sums->write(metrics, prefix, "exact");
    metrics[std::string(prefix) + "total"] = static_cast<double>(sums->count);
  }
  return metrics;
}

}  // namespace shoal
