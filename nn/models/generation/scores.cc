#include "shoal/nn/models/generation/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

// Skips ids that the model does not have: a config.json may name those of a larger vocabulary.
void ban(std::span<float> scores, std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens)
    if (token >= 0 && token < std::ssize(scores)) scores[static_cast<std::size_t>(token)] = kBanned;
}

void force(std::span<float> scores, std::int32_t token) {
  std::ranges::fill(scores, kBanned);
  scores[static_cast<std::size_t>(token)] = 0;
}

void penalize_repetition(float penalty, std::span<const std::int32_t> sequence,
                         std::span<float> scores) {
  std::vector<std::int32_t> seen(sequence.begin(), sequence.end());
  std::ranges::sort(seen);
  const auto [first, last] = std::ranges::unique(seen);
  seen.erase(first, last);
  for (const std::int32_t token : seen) {
    float& score = scores[static_cast<std::size_t>(token)];
    score = score < 0 ? score * penalty : score / penalty;
  }
}

// Bans the tokens that followed the last `size` - 1 tokens where these occurred before.
void ban_repeated_ngrams(std::size_t size, std::span<const std::int32_t> sequence,
                         std::span<float> scores) {
  if (sequence.size() < size) return;
  const auto suffix = sequence.last(size - 1);
  for (std::size_t i = 0; i + size <= sequence.size(); ++i)
    if (std::ranges::equal(sequence.subspan(i, size - 1), suffix))
      ban(scores, sequence.subspan(i + size - 1, 1));
}

void ban_words(const GenerationOptions& options, std::span<const std::int32_t> sequence,
               std::span<float> scores) {
  for (const std::vector<std::int32_t>& word : options.bad_words_ids) {
    // A stop token alone stays allowed, as in transformers.
    if (word.size() == 1 && std::ranges::count(options.stop_tokens, word[0]) > 0) continue;
    const std::span<const std::int32_t> start = std::span(word).first(word.size() - 1);
    if (start.size() <= sequence.size() && std::ranges::equal(sequence.last(start.size()), start))
      ban(scores, {&word.back(), 1});
  }
}

// The greatest score.
float checked_best(std::span<const float> scores) {
  SHOAL_CHECK(!scores.empty(), "a choice among 0 tokens");
  // NaN compares false with everything, so a broken model would always choose token 0. Infinite
  // weights would do the same.
  for (std::size_t i = 0; i < scores.size(); ++i)
    SHOAL_CHECK(!std::isnan(scores[i]), "the logit of token {} is NaN", i);
  const float best = *std::ranges::max_element(scores);
  SHOAL_CHECK(std::isfinite(best),
              "the largest logit is {}: the model's numbers have overflowed, or the options of "
              "generation ban every token",
              best);
  return best;
}

}  // namespace

void process_scores(const GenerationOptions& options, std::span<const std::int32_t> sequence,
                    std::int64_t new_tokens, std::span<float> scores) {
  const auto length = static_cast<std::int64_t>(sequence.size());
  if (options.repetition_penalty != 1)
    penalize_repetition(static_cast<float>(options.repetition_penalty), sequence, scores);
  if (options.no_repeat_ngram_size > 0)
    ban_repeated_ngrams(static_cast<std::size_t>(options.no_repeat_ngram_size), sequence, scores);
  ban_words(options, sequence, scores);
  if (length < options.min_length || new_tokens < options.min_new_tokens)
    ban(scores, options.stop_tokens);
  if (options.forced_bos_token_id && length == 1) force(scores, *options.forced_bos_token_id);
  if (options.forced_eos_token_id && new_tokens + 1 == options.max_new_tokens)
    force(scores, *options.forced_eos_token_id);
  ban(scores, options.suppress_tokens);
  const bool forced_first = options.forced_bos_token_id && length - new_tokens == 1;
  if (new_tokens == (forced_first ? 1 : 0)) ban(scores, options.begin_suppress_tokens);
}

std::vector<TokenWeight> likely_tokens(const GenerationOptions& options,
                                       std::span<const float> scores) {
  const auto before = [&](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const std::size_t most = options.top_k > 0
                               ? std::min(static_cast<std::size_t>(options.top_k), order.size())
                               : order.size();
  const auto last = order.begin() + static_cast<std::ptrdiff_t>(most) - 1;
  std::ranges::nth_element(order, last, before);
  const float least = scores[static_cast<std::size_t>(*last)];
  std::erase_if(order, [&](std::int32_t token) {
    const float score = scores[static_cast<std::size_t>(token)];
    return score < least || score == kBanned;
  });
  std::ranges::sort(order, before);
  std::vector<TokenWeight> kept;
  double total = 0;
  for (const std::int32_t token : order) {
    const double above = static_cast<double>(scores[static_cast<std::size_t>(token)]) -
                         scores[static_cast<std::size_t>(order[0])];
    kept.push_back({token, std::exp(above / options.temperature)});
    total += kept.back().weight;
  }
  if (options.top_p < 1) {
    // The shortest prefix whose probability reaches top_p.
    double cumulative = 0;
    std::size_t count = 0;
    while (count < kept.size() && cumulative < options.top_p * total)
      cumulative += kept[count++].weight;
    kept.resize(count);
  }
  std::erase_if(kept, [&](const TokenWeight& one) { return one.weight < options.min_p; });
  return kept;
}

std::int32_t pick_token(const GenerationOptions& options, std::span<const float> scores,
                        double uniform) {
  const float best = checked_best(scores);
  if (!options.do_sample)
    return static_cast<std::int32_t>(std::ranges::find(scores, best) - scores.begin());
  const std::vector<TokenWeight> kept = likely_tokens(options, scores);
  double total = 0;
  for (const TokenWeight& one : kept) total += one.weight;
  double target = uniform * total;
  for (const TokenWeight& one : kept) {
    target -= one.weight;
    if (target < 0) return one.token;
  }
  return kept.back().token;
}

void log_softmax(std::span<float> logits) {
  const float best = checked_best(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - best);
  const auto shift = static_cast<float>(std::log(sum));
  for (float& logit : logits) logit = logit - best - shift;
}

std::vector<ScoredToken> best_tokens(std::span<const float> scores, std::size_t count) {
  const auto better = [](const ScoredToken& a, const ScoredToken& b) {
    return a.score != b.score ? a.score > b.score : a.token < b.token;
  };
  // A heap of the best so far, with the worst of them on top: few of many scores enter it.
  std::vector<ScoredToken> best;
  best.reserve(count + 1);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (best.size() == count && (count == 0 || scores[i] <= best.front().score)) continue;
    best.push_back({static_cast<std::int32_t>(i), scores[i]});
    std::ranges::push_heap(best, better);
    if (best.size() <= count) continue;
    std::ranges::pop_heap(best, better);
    best.pop_back();
  }
  std::ranges::sort(best, better);
  return best;
}

}  // namespace shoal::nn
