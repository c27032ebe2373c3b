#include "shoal/train/data/corruption.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "support/golden.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

nlohmann::json golden() {
  std::ifstream file(testing::golden_path("corruption.json"));
  return nlohmann::json::parse(file);
}

// Gives the numbers of a golden case.
class GivenDraws final : public Draws {
 public:
  explicit GivenDraws(const nlohmann::json& one)
      : draws_(one["draws"].begin(), one["draws"].end()),
        spans_(one["spans"].begin(), one["spans"].end()) {}
  std::int64_t below(std::int64_t bound) override {
    const std::int64_t drawn = take(draws_);
    EXPECT_LT(drawn, bound);
    return drawn;
  }
  std::int64_t poisson(double) override { return take(spans_); }
  bool used_up() const { return draws_.empty() && spans_.empty(); }

 private:
  static std::int64_t take(std::deque<std::int64_t>& from) {
    if (from.empty()) throw_error(ErrorCode::internal, "no number is left");
    const std::int64_t first = from.front();
    from.pop_front();
    return first;
  }
  std::deque<std::int64_t> draws_, spans_;
};

// Blocks of `length` tokens from `ids` on.
class Blocks final : public Dataset {
 public:
  Blocks(std::int64_t size, std::int64_t length) : size_(size), length_(length) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index) const override {
    Sample sample;
    for (std::int64_t t = 0; t < length_; ++t)
      sample.input_ids.push_back(static_cast<std::int32_t>(40 + (index * 31 + t * 17) % 300));
    return sample;
  }

 private:
  std::int64_t size_, length_;
};

class Corruption : public ::testing::Test {
 protected:
  static std::shared_ptr<const Tokenizer> tokenizer(const std::string& name) {
    return load_tokenizer(testing::golden_path("tokenizer/" + name + ".json"));
  }
  std::string refusal(const std::function<void()>& make) {
    try {
      make();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  struct Way {
    std::int64_t ranks = 1, batch = 4, epoch = 0;
    int workers = 0;
  };
  using Corrupted = std::pair<Ids, Ids>;  // input and labels, without padding
  // Every sample of an epoch by its ordinal.
  std::map<std::int64_t, Corrupted> corrupted(const std::shared_ptr<const Collator>& collator,
                                              const Way& way, std::int64_t length) {
    std::map<std::int64_t, Corrupted> result;
    const auto blocks = std::make_shared<Blocks>(60, length);
    for (std::int64_t rank = 0; rank < way.ranks; ++rank) {
      Loader loader(
          blocks, collator,
          std::make_unique<DistributedSampler>(
              blocks->size(), DistributedSamplerOptions{.ranks = way.ranks, .rank = rank}),
          *memory_, {.batch_size = way.batch, .num_workers = way.workers});
      loader.seek({way.epoch, 0});
      while (const auto batch = loader.next())
        for (std::int64_t row = 0; row < batch->rows; ++row)
          result[batch->ordinals.first + row * batch->ordinals.stride] = row_of(*batch, row);
    }
    return result;
  }
  static Corrupted row_of(const Batch& batch, std::int64_t row) {
    const std::int64_t columns = batch.input_ids.shape()[1], targets = batch.labels.shape()[1];
    const auto* ids = batch.input_ids.const_data<std::int32_t>() + row * columns;
    const auto* labels = batch.labels.const_data<std::int32_t>() + row * targets;
    std::int64_t length = columns;
    if (batch.attention_mask.defined()) {
      const auto* mask = batch.attention_mask.const_data<std::uint8_t>() + row * columns;
      length = std::count(mask, mask + columns, 1);
    }
    Ids kept(labels, labels + targets);
    std::erase(kept, kIgnoreLabel);
    return {{ids, ids + length}, kept};
  }

  std::unique_ptr<MemoryResource> memory_ = make_host_memory();
};

TEST_F(Corruption, BlocksAndTargetsHaveTheLengthsOfTransformers) {
  const nlohmann::json cases = golden()["lengths"];
  ASSERT_GT(cases.size(), 4U);
  for (const auto& one : cases) {
    const SpanCorruptionLengths lengths = span_corruption_lengths(
        one[0], {.noise_density = one[1], .mean_noise_span_length = one[2]});
    EXPECT_EQ(lengths.tokens, one[3]) << one;
    EXPECT_EQ(lengths.targets, one[4]) << one;
  }
  EXPECT_THAT(refusal([] { span_corruption_lengths(2, {}); }), HasSubstr("block_size of 2"));
  EXPECT_THAT(refusal([] { span_corruption_lengths(64, {.mean_noise_span_length = 0.5}); }),
              HasSubstr("mean_noise_span_length is 0.5"));
}

TEST_F(Corruption, HidesSpansAsTransformersDoesForTheSameDraws) {
  const auto t5 = tokenizer("sentence_piece/t5");
  const nlohmann::json cases = golden()["t5"];
  ASSERT_GT(cases.size(), 4U);
  for (const auto& one : cases) {
    const Ids tokens = one["tokens"];
    const SpanCorruptionCollator collator(
        *t5, std::ssize(tokens),
        {.noise_density = one["density"], .mean_noise_span_length = one["mean"]});
    GivenDraws draws(one);
    const Sample sample = collator.corrupted(tokens, draws);
    EXPECT_EQ(sample.input_ids, one["input"].get<Ids>()) << tokens.size();
    EXPECT_EQ(sample.labels, one["labels"].get<Ids>()) << tokens.size();
    EXPECT_TRUE(draws.used_up());
  }
}

TEST_F(Corruption, DenoisesAsTransformersDoesForTheSameDraws) {
  const auto bart = tokenizer("roberta");
  const nlohmann::json cases = golden()["bart"];
  ASSERT_GT(cases.size(), 4U);
  for (const auto& one : cases) {
    const Ids tokens = one["tokens"];
    const DenoisingCollator collator(*bart, {.mask_ratio = one["ratio"],
                                             .poisson_lambda = one["mean"],
                                             .permute_sentence_ratio = one["permute"]});
    GivenDraws draws(one);
    const Sample sample = collator.corrupted(tokens, draws);
    EXPECT_EQ(sample.input_ids, one["input"].get<Ids>()) << tokens.size();
    EXPECT_EQ(sample.labels, one["labels"].get<Ids>()) << tokens.size();
    EXPECT_TRUE(draws.used_up());
  }
}

TEST_F(Corruption, DependsOnNeitherRanksNorWorkersNorBatches) {
  const auto t5 = tokenizer("sentence_piece/t5"), bart = tokenizer("roberta");
  for (const bool spans : {true, false}) {
    const auto make = [&](std::uint64_t seed) -> std::shared_ptr<const Collator> {
      if (spans)
        return std::make_shared<SpanCorruptionCollator>(*t5, 70,
                                                        SpanCorruptionOptions{.seed = seed});
      return std::make_shared<DenoisingCollator>(*bart, DenoisingOptions{.seed = seed});
    };
    const auto expected = corrupted(make(42), {}, 70);
    ASSERT_EQ(expected.size(), 60u);
    for (const Way& way : {Way{.batch = 7}, Way{.workers = 3},
                           Way{.ranks = 2, .batch = 3, .workers = 2}, Way{.ranks = 4, .batch = 1}})
      EXPECT_EQ(corrupted(make(42), way, 70), expected);
    EXPECT_NE(corrupted(make(43), {}, 70), expected);
    EXPECT_NE(corrupted(make(42), {.epoch = 1}, 70), expected);
  }
}

// The input fills block_size, and input and target together are the block.
TEST_F(Corruption, SpansReplaceEachTokenOnce) {
  const auto t5 = tokenizer("sentence_piece/t5");
  const SpanCorruptionLengths lengths = span_corruption_lengths(64, {});
  const auto collator =
      std::make_shared<SpanCorruptionCollator>(*t5, lengths.tokens, SpanCorruptionOptions{});
  const Blocks blocks(60, lengths.tokens);
  std::set<Ids> lengths_seen;
  for (const auto& [ordinal, sample] : corrupted(collator, {}, lengths.tokens)) {
    const auto& [input, labels] = sample;
    ASSERT_EQ(std::ssize(input), 64);
    ASSERT_EQ(std::ssize(labels), lengths.targets);
    EXPECT_EQ(input.back(), 1);
    EXPECT_EQ(labels.back(), 1);
    // Puts each span where its sentinel stands.
    Ids restored, sizes;
    std::int32_t sentinel = 499;  // <extra_id_0>
    auto label = labels.begin();
    for (const std::int32_t id : Ids(input.begin(), input.end() - 1)) {
      if (id != sentinel) {
        restored.push_back(id);
        continue;
      }
      ASSERT_EQ(*label++, sentinel--);
      sizes.push_back(0);
      for (; label != labels.end() - 1 && *label != sentinel; ++label, ++sizes.back())
        restored.push_back(*label);
    }
    bool is_block = false;
    for (std::int64_t i = 0; i < blocks.size() && !is_block; ++i)
      is_block = blocks.get(i).input_ids == restored;
    EXPECT_TRUE(is_block) << ordinal;
    EXPECT_EQ(sentinel, 499 - 3) << "10 hidden tokens in 3 spans";
    lengths_seen.insert(sizes);
  }
  EXPECT_GT(lengths_seen.size(), 20u);
}

TEST_F(Corruption, DenoisingMasksItsShareAndMovesSentences) {
  const auto bart = tokenizer("roberta");
  const std::int32_t mask = *bart->roles().mask, stop = *bart->token_to_id(".");
  Ids block = {0};
  std::set<Ids> sentences;
  for (std::int32_t first = 40; first < 240; first += 10) {
    Ids sentence;
    for (std::int32_t i = 0; i < 9; ++i) sentence.push_back(first + i);
    sentence.push_back(stop);
    block.insert(block.end(), sentence.begin(), sentence.end());
    sentences.insert(sentence);
  }
  block.push_back(2);
  const DenoisingCollator collator(*bart, {});
  double hidden = 0, masks = 0;
  constexpr int kSamples = 400;
  for (int i = 0; i < kSamples; ++i) {
    SampleDraws draws(7, 1, i, 0);
    const Sample sample = collator.corrupted(block, draws);
    EXPECT_EQ(sample.labels, block);
    EXPECT_EQ(sample.input_ids.front(), 0);
    EXPECT_EQ(sample.input_ids.back(), 2);
    const auto there = std::ranges::count(sample.input_ids, mask);
    masks += static_cast<double>(there);
    hidden += 202 - static_cast<double>(std::ssize(sample.input_ids) - there);
  }
  // 60 of 200 tokens, in spans of 3 / (1 - exp(-3)) tokens in the mean; spans that overlap hide
  // fewer.
  EXPECT_NEAR(hidden / kSamples, 52, 2.5);
  EXPECT_NEAR(masks / kSamples, 16, 2);

  // Nothing hidden: the sentences are permuted, and some stay in place.
  const DenoisingCollator moving(*bart, {.mask_ratio = 1e-9, .permute_sentence_ratio = 1});
  std::set<Ids> orders;
  for (int i = 0; i < 20; ++i) {
    SampleDraws draws(7, 1, i, 0);
    Ids order;
    Ids input = moving.corrupted(block, draws).input_ids;
    ASSERT_LE(std::ranges::count(input, mask), 1);
    for (std::size_t t = 1; t + 1 < input.size(); ++t)
      if ((input[t] - 40) % 10 == 0) order.push_back(input[t]);
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 18u);
}

TEST_F(Corruption, PoissonLengthsHaveTheirMeanAndVariance) {
  SampleDraws draws(3, 1, 0, 0);
  for (const double mean : {0.5, 3.0, 40.0}) {
    constexpr int kCount = 20000;
    double sum = 0, squares = 0;
    for (int i = 0; i < kCount; ++i) {
      const auto value = static_cast<double>(draws.poisson(mean));
      sum += value;
      squares += value * value;
    }
    EXPECT_NEAR(sum / kCount, mean, 5 * std::sqrt(mean / kCount));
    EXPECT_NEAR(squares / kCount - sum / kCount * (sum / kCount), mean, 0.06 * mean);
  }
}

TEST_F(Corruption, RefusesTokenizersWithoutTheTokens) {
  const auto t5 = tokenizer("sentence_piece/t5"), bart = tokenizer("roberta");
  EXPECT_THAT(refusal([&] { SpanCorruptionCollator(*bart, 70, {}); }),
              HasSubstr("the tokenizer 0 sentinels"));
  EXPECT_THAT(refusal([&] { SpanCorruptionCollator(*t5, 3000, {}); }),
              HasSubstr("has 150 hidden spans, but the tokenizer 100 sentinels"));
  EXPECT_THAT(refusal([&] { DenoisingCollator(*t5, {}); }), HasSubstr("has no mask token"));
  EXPECT_THAT(refusal([&] { DenoisingCollator(*bart, {.poisson_lambda = 0}); }),
              HasSubstr("poisson_lambda is 0"));
  // Draws of such a mean are 0, and 30 % of the tokens would never be reached.
  EXPECT_THAT(refusal([&] { DenoisingCollator(*bart, {.poisson_lambda = 1e-9}); }),
              HasSubstr("it is from 0.1 to 100"));
}

}  // namespace
}  // namespace shoal
