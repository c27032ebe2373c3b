// Turns logits into answers, like postprocess_qa_predictions of transformers' examples
// (utils_qa.py).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "shoal/train/tasks/question_answering/squad_features.h"

namespace shoal {

struct AnswerOptions {
  std::int64_t n_best_size = 20;
  std::int64_t max_answer_length = 30;  // tokens
  bool version_2_with_negative = false;
  double null_score_diff_threshold = 0;  // the null answer must win by more than this
};

// A feature's logits in the order of its tokens. Logits after the feature's own tokens are padding
// and are ignored, so the result does not depend on the batch.
struct AnswerLogits {
  std::span<const float> start, end;
};

struct AnswerCandidate {
  std::string text;
  float start_logit = 0, end_logit = 0;
  double probability = 0;  // softmax over the kept candidates
};

struct PredictedAnswer {
  std::string text;                        // empty: no answer
  std::vector<AnswerCandidate> best = {};  // highest sum of logits first
  double null_score_difference = 0;        // version 2: null score minus best score
};

// One answer per question, in the file's order. Throws invalid_argument unless `logits` has one
// entry per feature, with at least as many values as the feature has tokens, all of them numbers.
//
// A candidate begins at one of the n_best_size highest start logits and ends at one of the
// n_best_size highest end logits; of equal logits the later position comes first. It lies within
// the context and has at most max_answer_length tokens. Candidates of equal score keep the order in
// which they were found.
std::vector<PredictedAnswer> predict_answers(const SquadDataset& dataset,
                                             std::span<const AnswerLogits> logits,
                                             const AnswerOptions& options = {});

// The texts of predictions.json, nbest_predictions.json and null_odds.json, by question id.
std::string predictions_json(const SquadFile& file, std::span<const PredictedAnswer> predictions);
std::string nbest_json(const SquadFile& file, std::span<const PredictedAnswer> predictions);
std::string null_odds_json(const SquadFile& file, std::span<const PredictedAnswer> predictions);

// Percentages over all questions, named as in the official scripts. Version 1.1: exact_match, f1.
// Version 2: exact, f1, total, and their HasAns_ and NoAns_ forms if there are such questions.
std::map<std::string, double> squad_metrics(const SquadFile& file,
                                            std::span<const PredictedAnswer> predictions,
                                            bool version_2_with_negative = false);

}  // namespace shoal
