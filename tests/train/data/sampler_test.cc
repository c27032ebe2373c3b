#include "shoal/train/data/sampler.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

std::vector<std::int64_t> indices_of(const Sampler& sampler) {
  std::vector<std::int64_t> list;
  for (std::int64_t i = 0; i < sampler.samples(); ++i) list.push_back(sampler.index(i));
  return list;
}

// PyTorch's DistributedSampler.__iter__, word for word, with a given permutation.
std::vector<std::int64_t> pytorch(std::vector<std::int64_t> indices, std::int64_t ranks,
                                  std::int64_t rank, bool drop_last) {
  const auto size = static_cast<std::int64_t>(indices.size());
  const std::int64_t samples = drop_last ? size / ranks : (size + ranks - 1) / ranks;
  const std::int64_t total = samples * ranks;
  if (!drop_last) {
    const std::vector<std::int64_t> once = indices;
    while (static_cast<std::int64_t>(indices.size()) < total)
      indices.push_back(once[indices.size() % once.size()]);
  }
  indices.resize(static_cast<std::size_t>(total));
  std::vector<std::int64_t> mine;
  for (std::int64_t i = rank; i < total; i += ranks)
    mine.push_back(indices[static_cast<std::size_t>(i)]);
  return mine;
}

TEST(DistributedSampler, FollowsPyTorchForEveryNumberOfRanks) {
  for (const std::int64_t size : {1, 2, 5, 16, 17, 100})
    for (std::int64_t ranks = 1; ranks <= 17; ++ranks)
      for (const bool drop_last : {false, true})
        for (const bool shuffle : {false, true}) {
          if (drop_last && size < ranks) {
            EXPECT_THROW(DistributedSampler(size, {.ranks = ranks, .drop_last = true}), Error);
            continue;
          }
          std::vector<std::int64_t> order(static_cast<std::size_t>(size));
          std::iota(order.begin(), order.end(), 0);
          if (shuffle) order = permutation(size, 7, 3);
          for (std::int64_t rank = 0; rank < ranks; ++rank) {
            DistributedSampler sampler(size, {.ranks = ranks,
                                              .rank = rank,
                                              .seed = 7,
                                              .shuffle = shuffle,
                                              .drop_last = drop_last});
            sampler.set_epoch(3);
            ASSERT_EQ(indices_of(sampler), pytorch(order, ranks, rank, drop_last))
                << size << " samples, rank " << rank << " of " << ranks;
            EXPECT_EQ(sampler.ordinal(1), rank + ranks);
          }
        }
}

// The k-th global batch holds the same samples for every number of ranks. Decision 10 depends on
// it.
TEST(DistributedSampler, GlobalBatchesDoNotDependOnRanks) {
  std::map<std::int64_t, std::set<std::pair<std::int64_t, std::int64_t>>> batches[2];
  for (const std::int64_t ranks : {1, 4})
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const DistributedSampler sampler(64, {.ranks = ranks, .rank = rank});
      const std::int64_t per_rank = 8 / ranks;
      for (std::int64_t i = 0; i < sampler.samples(); ++i)
        batches[ranks / 4][i / per_rank].insert({sampler.ordinal(i), sampler.index(i)});
    }
  EXPECT_EQ(batches[0], batches[1]);
}

TEST(DistributedSampler, EpochsAndSeedsGiveOtherPermutations) {
  std::set<std::vector<std::int64_t>> seen;
  for (std::uint64_t seed = 0; seed < 5; ++seed)
    for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
      auto list = permutation(50, seed, epoch);
      EXPECT_EQ(list, permutation(50, seed, epoch));
      seen.insert(list);
      std::sort(list.begin(), list.end());
      for (std::int64_t i = 0; i < 50; ++i) ASSERT_EQ(list[static_cast<std::size_t>(i)], i);
    }
  EXPECT_EQ(seen.size(), 25u);
  EXPECT_TRUE(permutation(0, 1, 0).empty());
  EXPECT_EQ(permutation(1, 1, 0), std::vector<std::int64_t>{0});
}

TEST(DistributedSampler, PermutationsAreUniform) {
  // 2400 draws of the 24 orders of 4: chi-squared with 23 degrees of freedom, 49.7 at p = 0.001.
  std::map<std::vector<std::int64_t>, int> counts;
  for (std::int64_t epoch = 0; epoch < 2400; ++epoch) ++counts[permutation(4, 42, epoch)];
  double chi_squared = 0;
  for (const auto& [order, count] : counts) chi_squared += (count - 100.0) * (count - 100.0) / 100;
  EXPECT_EQ(counts.size(), 24u);
  EXPECT_LT(chi_squared, 49.7);
}

// These values are fixed, so that a checkpoint of today resumes on the same samples later.
TEST(DistributedSampler, ThePermutationIsPartOfTheFormat) {
  EXPECT_EQ(permutation(10, 42, 0), (std::vector<std::int64_t>{4, 3, 7, 2, 9, 6, 8, 5, 1, 0}));
  EXPECT_EQ(permutation(10, 42, 1), (std::vector<std::int64_t>{1, 9, 2, 7, 3, 0, 4, 6, 5, 8}));
}

TEST(DistributedSampler, RefusesInvalidOptions) {
  EXPECT_THROW(DistributedSampler(0, {}), Error);
  EXPECT_THROW(DistributedSampler(5, {.ranks = 2, .rank = 2}), Error);
  EXPECT_THROW(DistributedSampler(5, {.ranks = 0}), Error);
  DistributedSampler sampler(5, {});
  EXPECT_THROW(sampler.index(5), Error);
  EXPECT_THROW(sampler.index(-1), Error);
  EXPECT_THROW(sampler.set_epoch(-1), Error);
}

TEST(EvaluationSampler, EverySampleOnceAndBackInOrder) {
  for (const std::int64_t size : {0, 1, 2, 7, 16, 33})
    for (std::int64_t ranks = 1; ranks <= 17; ++ranks) {
      std::vector<std::int64_t> predictions(static_cast<std::size_t>(size), -1);
      std::int64_t most = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const EvaluationSampler sampler(size, ranks, rank);
        most = std::max(most, sampler.samples());
        for (std::int64_t i = 0; i < sampler.samples(); ++i) {
          auto& place = predictions[static_cast<std::size_t>(sampler.index(i))];
          EXPECT_EQ(place, -1);
          place = rank + i * ranks;
        }
      }
      for (std::int64_t i = 0; i < size; ++i)
        EXPECT_EQ(predictions[static_cast<std::size_t>(i)], i);
      EXPECT_EQ(EvaluationSampler(size, ranks, 0).batches_of_longest_rank(3), (most + 2) / 3);
    }
}

// transformers' get_length_grouped_indices, word for word, with a given permutation.
std::vector<std::int64_t> transformers_groups(const std::vector<std::int64_t>& indices,
                                              const std::vector<std::int32_t>& lengths,
                                              std::int64_t batch) {
  std::int64_t times = std::min<std::int64_t>(std::ssize(lengths) / (batch * 4), 50);
  if (times == 0) times = 1;
  std::vector<std::vector<std::int64_t>> pieces;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (i % static_cast<std::size_t>(times * batch) == 0) pieces.emplace_back();
    pieces.back().push_back(indices[i]);
  }
  const auto length = [&](std::int64_t i) { return lengths[static_cast<std::size_t>(i)]; };
  std::size_t longest = 0;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    std::stable_sort(pieces[p].begin(), pieces[p].end(),
                     [&](std::int64_t a, std::int64_t b) { return length(a) > length(b); });
    if (length(pieces[p][0]) > length(pieces[longest][0])) longest = p;
  }
  std::swap(pieces[0][0], pieces[longest][0]);
  std::vector<std::int64_t> all;
  for (const auto& piece : pieces) all.insert(all.end(), piece.begin(), piece.end());
  return all;
}

TEST(DistributedSampler, GroupsByLengthAsTransformersDoes) {
  for (const std::int64_t size : {1, 7, 40, 403})
    for (const std::int64_t batch : {1, 2, 8}) {
      auto lengths = std::make_shared<std::vector<std::int32_t>>();
      for (std::int64_t i = 0; i < size; ++i)
        lengths->push_back(static_cast<std::int32_t>(5 + i * 37 % 23));
      DistributedSampler sampler(size, {.seed = 3, .lengths = lengths, .grouped_batch = batch});
      sampler.set_epoch(2);
      EXPECT_EQ(indices_of(sampler), transformers_groups(permutation(size, 3, 2), *lengths, batch))
          << size << " samples in batches of " << batch;
      // Each sample occurs once, for any number of ranks.
      std::multiset<std::int64_t> seen;
      for (std::int64_t rank = 0; rank < 2; ++rank) {
        DistributedSampler half(
            size,
            {.ranks = 2, .rank = rank, .seed = 3, .lengths = lengths, .grouped_batch = batch});
        for (const std::int64_t index : indices_of(half)) seen.insert(index);
      }
      EXPECT_EQ(std::ssize(seen), size + size % 2);
      EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(),
                static_cast<std::size_t>(size));
    }
  auto few = std::make_shared<std::vector<std::int32_t>>(3);
  EXPECT_THROW(DistributedSampler(4, {.lengths = few}), Error);
}

}  // namespace
}  // namespace shoal
