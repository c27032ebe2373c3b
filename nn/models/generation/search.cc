#include "shoal/nn/models/generation/search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "shoal/kernels/random.h"
#include "shoal/nn/autograd/parameter.h"
#include "shoal/nn/models/generation/scores.h"

namespace shoal::nn {
namespace {

using Tokens = std::vector<std::int32_t>;

// `sequence` ends with the new tokens, at least one.
bool has_ended(const GenerationOptions& options, std::span<const std::int32_t> sequence,
               std::size_t context) {
  const auto fresh = sequence.subspan(context);
  return std::ranges::count(options.stop_tokens, fresh.back()) > 0 ||
         std::ssize(fresh) >= options.max_new_tokens || (options.ends && options.ends(fresh));
}

// Greedy, or num_return_sequences independent samples.
class RowSearch final : public TokenSearch {
 public:
  RowSearch(const GenerationOptions& options, Tokens context, std::uint32_t number)
      : options_(options),
        context_(context.size()),
        rows_(static_cast<std::size_t>(options.num_return_sequences), Row{std::move(context)}),
        first_sample_(number * static_cast<std::uint32_t>(options.num_return_sequences)) {
    site_.seed = options.seed;
    site_.site = hash_name("generate");
  }
  std::int64_t rows() const override { return std::ssize(rows_); }
  void score(std::int64_t row, std::span<const float> logits) override {
    if (step_ > 0) return choose(static_cast<std::size_t>(row), logits);
    for (std::size_t one = 0; one < rows_.size(); ++one) choose(one, logits);
  }
  std::vector<Continuation> advance() override {
    ++step_;
    std::vector<Continuation> next;
    bool ended = true;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      Row& one = rows_[row];
      if (!one.ended) {
        one.sequence.push_back(one.chosen);
        one.ended = has_ended(options_, one.sequence, context_);
      }
      ended &= one.ended;
      // The tokens after an ended row are ignored.
      next.push_back({static_cast<std::int64_t>(row), one.chosen});
    }
    if (ended) next.clear();
    return next;
  }
  std::vector<Tokens> results() const override {
    std::vector<Tokens> all;
    for (const Row& row : rows_)
      all.emplace_back(row.sequence.begin() + static_cast<std::ptrdiff_t>(context_),
                       row.sequence.end());
    return all;
  }

 private:
  struct Row {
    Tokens sequence;
    std::int32_t chosen = 0;
    bool ended = false;
  };
  void choose(std::size_t row, std::span<const float> logits) {
    Row& one = rows_[row];
    if (one.ended) return;
    scores_.assign(logits.begin(), logits.end());
    process_scores(options_, one.sequence, step_, scores_);
    const double uniform = kernels::uniform(kernels::random_bits(
        site_, first_sample_ + static_cast<std::uint32_t>(row), static_cast<std::uint64_t>(step_)));
    one.chosen = pick_token(options_, scores_, uniform);
  }

  const GenerationOptions& options_;
  std::size_t context_;
  std::vector<Row> rows_;
  std::uint32_t first_sample_;
  kernels::RandomSite site_;
  std::int64_t step_ = 0;
  std::vector<float> scores_;
};

// transformers' beam search. Each step takes the best continuations of all running beams: enough of
// them that num_beams remain even if every stop token follows every beam. Those among the first
// num_beams that end compete for the num_beams places of ended sequences.
class BeamSearch final : public TokenSearch {
 public:
  BeamSearch(const GenerationOptions& options, const Tokens& context)
      : options_(options),
        context_(context.size()),
        running_(static_cast<std::size_t>(options.num_beams), Running{context, kHopeless, {}}),
        ended_(running_.size()) {
    running_[0].score = 0;  // the others are copies, which must not compete
  }
  std::int64_t rows() const override { return options_.num_beams; }
  void score(std::int64_t row, std::span<const float> logits) override {
    Running& beam = running_[static_cast<std::size_t>(row)];
    scores_.assign(logits.begin(), logits.end());
    log_softmax(scores_);
    process_scores(options_, beam.sequence, step_, scores_);
    beam.best = best_tokens(scores_, candidates());
  }
  std::vector<Continuation> advance() override {
    if (step_ == 0)
      for (Running& beam : running_) beam.best = running_[0].best;
    std::vector<Candidate> all = best_candidates();
    ++step_;
    const auto places = static_cast<std::size_t>(options_.num_beams);
    bool all_ended = true;
    for (std::size_t i = 0; i < all.size(); ++i) {
      Candidate& one = all[i];
      Tokens sequence = running_[one.beam].sequence;
      sequence.push_back(one.token);
      one.ended = has_ended(options_, sequence, context_);
      all_ended &= one.ended;
      if (!one.ended) continue;
      if (i < places) keep_ended(std::move(sequence), one.score / length_divisor(step_));
      one.score += kHopeless;
    }
    std::ranges::stable_sort(all, std::ranges::greater{}, &Candidate::score);
    all.resize(places);
    std::vector<Running> next;
    std::vector<Continuation> continuations;
    for (const Candidate& one : all) {
      next.push_back({running_[one.beam].sequence, one.score, {}});
      next.back().sequence.push_back(one.token);
      continuations.push_back({static_cast<std::int64_t>(one.beam), one.token});
    }
    running_ = std::move(next);
    if (all_ended || is_settled()) continuations.clear();
    return continuations;
  }
  std::vector<Tokens> results() const override {
    std::vector<Tokens> all;
    for (std::int64_t i = 0; i < options_.num_return_sequences; ++i) {
      const Tokens& sequence = ended_[static_cast<std::size_t>(i)].sequence;
      all.emplace_back(
          sequence.begin() + static_cast<std::ptrdiff_t>(std::min(context_, sequence.size())),
          sequence.end());
    }
    return all;
  }

 private:
  static constexpr float kHopeless = -1e9F;  // transformers' score of what must not win
  struct Running {
    Tokens sequence;
    float score;
    std::vector<ScoredToken> best;  // the next tokens, with their own scores
  };
  struct Ended {
    Tokens sequence;
    float score = kHopeless;
    bool filled = false;
  };
  struct Candidate {
    std::size_t beam = 0;
    std::int32_t token = 0;
    float score = 0;
    bool ended = false;
  };

  std::size_t candidates() const {
    return std::max<std::size_t>(2, 1 + options_.stop_tokens.size()) *
           static_cast<std::size_t>(options_.num_beams);
  }
  float length_divisor(std::int64_t length) const {
    return static_cast<float>(std::pow(static_cast<double>(length), options_.length_penalty));
  }
  std::vector<Candidate> best_candidates() const {
    std::vector<Candidate> all;
    for (std::size_t beam = 0; beam < running_.size(); ++beam)
      for (const ScoredToken& next : running_[beam].best)
        all.push_back({beam, next.token, running_[beam].score + next.score});
    std::ranges::stable_sort(all, std::ranges::greater{}, &Candidate::score);
    all.resize(std::min(all.size(), candidates()));
    return all;
  }
  void keep_ended(Tokens sequence, float score) {
    const auto place =
        std::ranges::find_if(ended_, [score](const Ended& other) { return score > other.score; });
    if (place == ended_.end()) return;
    ended_.insert(place, {std::move(sequence), score, true});
    ended_.pop_back();
  }
  // True if no running beam can enter the ended ones any more, by transformers' heuristics.
  bool is_settled() const {
    if (!std::ranges::all_of(ended_, &Ended::filled)) return false;
    if (options_.early_stopping == EarlyStopping::immediately) return true;
    const bool may_grow =
        options_.early_stopping == EarlyStopping::never && options_.length_penalty > 0;
    const float best =
        running_[0].score / length_divisor(may_grow ? options_.max_new_tokens : step_);
    return best <= ended_.back().score;
  }

  const GenerationOptions& options_;
  std::size_t context_;
  std::vector<Running> running_;  // num_beams of them, best first
  std::vector<Ended> ended_;      // num_beams places, best first
  std::int64_t step_ = 0;
  std::vector<float> scores_;
};

}  // namespace

std::unique_ptr<TokenSearch> make_search(const GenerationOptions& options, Tokens context,
                                         std::uint32_t number) {
  if (options.searches_beams()) return std::make_unique<BeamSearch>(options, context);
  return std::make_unique<RowSearch>(options, std::move(context), number);
}

}  // namespace shoal::nn
