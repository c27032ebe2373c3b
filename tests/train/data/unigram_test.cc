#include "shoal/train/data/unigram.h"

#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

class Samples final : public Dataset {
 public:
  explicit Samples(std::vector<std::vector<std::int32_t>> ids) : ids_(std::move(ids)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(ids_.size()); }
  Sample get(std::int64_t index) const override {
    Sample sample;
    sample.input_ids = ids_[static_cast<std::size_t>(index)];
    return sample;
  }

 private:
  std::vector<std::vector<std::int32_t>> ids_;
};

TEST(UnigramLoss, IsTheCrossEntropyUnderSmoothedCounts) {
  const Samples train({{0, 0}, {0, 1}});
  const Samples evaluation({{3, 0}, {3, 1, 2, 2}});
  // Counts plus one are 4, 2, 1 and 1 of 8. The first token of a sample is not a target.
  const double expected = -(std::log(4.0 / 8) + std::log(2.0 / 8) + 2 * std::log(1.0 / 8)) / 4;
  EXPECT_NEAR(unigram_loss(train, evaluation, 4), expected, 1e-12);
}

// Padding and the first tokens of packed documents count neither in training nor in evaluation.
TEST(UnigramLoss, LeavesOutTokensWithoutALabel) {
  class Labelled final : public Dataset {
   public:
    std::int64_t size() const override { return 1; }
    Sample get(std::int64_t) const override {
      return {.input_ids = {0, 0, 3, 1, 2}, .labels = {-100, 0, -100, 1, -100}};
    }
  };
  EXPECT_NEAR(unigram_loss(Labelled(), Labelled(), 4), -2 * std::log(2.0 / 6) / 2, 1e-12);
}

TEST(UnigramLoss, RefusesIdsBeyondTheVocabularyAndNoTargets) {
  const Samples some({{0, 5}});
  const Samples single(std::vector<std::vector<std::int32_t>>{{0}});
  EXPECT_THROW(unigram_loss(some, some, 5), Error);
  EXPECT_THROW(unigram_loss(some, single, 6), Error);
}

}  // namespace
}  // namespace shoal
