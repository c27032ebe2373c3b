#include "shoal/train/data/unigram.h"

#include <cmath>
#include <utility>
#include <vector>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"

namespace shoal {

namespace {

// The target at each position; kIgnoreLabel: none.
std::vector<std::int32_t> tokens_of(Sample sample) {
  return sample.labels.empty() ? std::move(sample.input_ids) : std::move(sample.labels);
}

}  // namespace

double unigram_loss(const Dataset& train, const Dataset& evaluation, std::int64_t vocab_size) {
  std::vector<double> counts(static_cast<std::size_t>(vocab_size), 1.0);
  const auto count_of = [&](std::int32_t id) -> double& {
    SHOAL_CHECK(id >= 0 && id < vocab_size, "token {} is beyond a vocabulary of {}", id,
                vocab_size);
    return counts[static_cast<std::size_t>(id)];
  };
  auto total = static_cast<double>(vocab_size);
  for (std::int64_t i = 0; i < train.size(); ++i) {
    progress::made();
    for (const std::int32_t id : tokens_of(train.get(i))) {
      if (id == kIgnoreLabel) continue;
      count_of(id) += 1;
      total += 1;
    }
  }
  double sum = 0, targets = 0;
  for (std::int64_t i = 0; i < evaluation.size(); ++i) {
    progress::made();
    const std::vector<std::int32_t> tokens = tokens_of(evaluation.get(i));
    for (std::size_t t = 1; t < tokens.size(); ++t) {
      if (tokens[t] == kIgnoreLabel) continue;
      sum -= std::log(count_of(tokens[t]) / total);
      targets += 1;
    }
  }
  SHOAL_CHECK(targets > 0, "the evaluation set of {} samples has no target", evaluation.size());
  return sum / targets;
}

}  // namespace shoal
