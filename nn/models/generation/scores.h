// The scores of the next token, as transformers' logits processors and warpers define them. Pure
// functions on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shoal/nn/models/generation/options.h"

namespace shoal::nn {

// Applies the options from repetition_penalty to begin_suppress_tokens to the scores [V] of the
// token after `sequence`, a context of which the last `new_tokens` are new.
void process_scores(const GenerationOptions& options, std::span<const std::int32_t> sequence,
                    std::int64_t new_tokens, std::span<float> scores);

struct TokenWeight {
  std::int32_t token = 0;
  double weight = 0;  // its probability is the weight's share of all weights
};
// The tokens that temperature, top_k, top_p and min_p leave, likeliest first; never empty.
std::vector<TokenWeight> likely_tokens(const GenerationOptions& options,
                                       std::span<const float> scores);

// The greedy token, or with do_sample the one that `uniform` in [0, 1) draws. Throws if a score is
// NaN or none is finite.
std::int32_t pick_token(const GenerationOptions& options, std::span<const float> scores,
                        double uniform);

// Replaces logits by log-probabilities, in f32. Throws if a logit is NaN or none is finite.
void log_softmax(std::span<float> logits);

struct ScoredToken {
  std::int32_t token = 0;
  float score = 0;
};
// The `count` tokens with the highest scores (fewer if there are fewer), best first; the lower id
// wins a tie.
std::vector<ScoredToken> best_tokens(std::span<const float> scores, std::size_t count);

}  // namespace shoal::nn
