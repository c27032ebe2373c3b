// From logits to answers, as postprocess_qa_predictions of transformers' examples (utils_qa.py).
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
  double null_score_diff_threshold = 0;  // the null answer wins by more than this
};

// A feature's logits in its tokens' order. What follows the feature's own tokens is padding and not
// looked at, so that nothing depends on the batch.
struct AnswerLogits {
  std::span<const float> start, end;
};

struct AnswerCandidate {
  std::string text;
  float start_logit = 0, end_logit = 0;
  double probability = 0;  // softmax over the candidates kept
};

struct PredictedAnswer {
  std::string text;                        // empty: none
  std::vector<AnswerCandidate> best = {};  // the highest sum of logits first
  double null_score_difference = 0;        // version 2: null's score minus the best answer's
};

// One for each question, in the file's order. invalid_argument: `logits` has not one entry a
// feature, one has fewer numbers than the feature tokens, or something that is no number.
// Candidates begin and end at one of the n_best_size highest start and end logits (of equal ones
// the later position first), within the context, at most max_answer_length tokens; of equal scores
// the one met first stays first.
std::vector<PredictedAnswer> predict_answers(const SquadDataset& dataset,
                                             std::span<const AnswerLogits> logits,
                                             const AnswerOptions& options = {});

// The texts of predictions.json, nbest_predictions.json and null_odds.json: by question id.
std::string predictions_json(const SquadFile& file, std::span<const PredictedAnswer> predictions);
std::string nbest_json(const SquadFile& file, std::span<const PredictedAnswer> predictions);
std::string null_odds_json(const SquadFile& file, std::span<const PredictedAnswer> predictions);

// In percent, over all questions, as the official scripts name them. Version 1.1: exact_match, f1.
// Version 2: exact, f1, total, and HasAns_ and NoAns_ forms where there are such questions.
std::map<std::string, double> squad_metrics(const SquadFile& file,
                                            std::span<const PredictedAnswer> predictions,
                                            bool version_2_with_negative = false);

}  // namespace shoal
