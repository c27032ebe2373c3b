#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shoal/collectives/algorithm/canonical_tree.h"
#include "shoal/collectives/algorithm/choice.h"
#include "shoal/collectives/algorithm/exchange.h"
#include "shoal/collectives/algorithm/ring.h"
#include "shoal/collectives/algorithm/shard.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

constexpr std::int64_t kCounts[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 1000, 4097, 1 << 20};

TEST(Shard, TilesTheBufferInBalancedWholeGranules) {
  for (int parts = 1; parts <= 17; ++parts)
    for (const std::int64_t count : kCounts)
      for (const std::int64_t granule : {1, 16, 64}) {
        std::int64_t end = 0, smallest = count, largest = 0;
        for (int part = 0; part < parts; ++part) {
          const algorithm::Range range = algorithm::shard(count, parts, part, granule);
          ASSERT_EQ(range.begin, end) << parts << " parts of " << count;
          ASSERT_TRUE(range.begin % granule == 0 || range.empty());
          end = range.end;
          smallest = std::min(smallest, range.size());
          largest = std::max(largest, range.size());
        }
        EXPECT_EQ(end, count);
        EXPECT_LT(largest - smallest, 2 * granule) << parts << " parts of " << count;
        EXPECT_EQ(algorithm::shard(count, parts, 0, granule).size(), largest);  // plans rely on it
      }
}

// A text such as "((01)(23))4", built from the definition.
std::string tree_of(int begin, int size) {
  if (size == 1) return std::string(1, static_cast<char>('a' + begin));
  const int left = algorithm::canonical_left(size);
  return "(" + tree_of(begin, left) + tree_of(begin + left, size - left) + ")";
}

TEST(CanonicalTree, IsTheTreeOfABinaryCounter) {
  EXPECT_EQ(tree_of(0, 5), "(((ab)(cd))e)");
  EXPECT_EQ(tree_of(0, 7), "(((ab)(cd))((ef)g))");
  for (int size = 1; size <= 17; ++size) {
    std::vector<std::string> stack;
    std::size_t deepest = 0;
    algorithm::walk_canonical_tree(
        size,
        [&](int i) {
          stack.push_back(tree_of(i, 1));
          deepest = std::max(deepest, stack.size());
        },
        [&] {
          const std::string right = stack.back();
          stack.pop_back();
          stack.back() = "(" + stack.back() + right + ")";
        });
    ASSERT_EQ(stack, std::vector<std::string>{tree_of(0, size)}) << size;
    EXPECT_EQ(deepest, static_cast<std::size_t>(algorithm::canonical_depth(size))) << size;
  }
}

// The trees of the groups, joined by the tree over the groups.
std::string tree_of_groups(std::span<const int> sizes, int begin) {
  if (sizes.size() == 1) return tree_of(begin, sizes[0]);
  const auto left =
      static_cast<std::size_t>(algorithm::canonical_left(static_cast<int>(sizes.size())));
  int ranks = 0;
  for (const int size : sizes.first(left)) ranks += size;
  return "(" + tree_of_groups(sizes.first(left), begin) +
         tree_of_groups(sizes.subspan(left), begin + ranks) + ")";
}

TEST(CanonicalTree, KnowsWhichGroupsItMatches) {
  // Every way to divide up to 12 ranks into consecutive groups.
  for (int size = 1; size <= 12; ++size)
    for (int cuts = 0; cuts < 1 << (size - 1); ++cuts) {
      std::vector<int> sizes{1};
      for (int i = 0; i < size - 1; ++i) {
        if ((cuts >> i) & 1)
          sizes.push_back(1);
        else
          ++sizes.back();
      }
      ASSERT_EQ(algorithm::canonical_over_groups(sizes),
                tree_of_groups(sizes, 0) == tree_of(0, size))
          << size << " ranks, cuts " << cuts;
    }
  for (int hosts = 1; hosts <= 17; ++hosts)
    for (const int ranks : {1, 2, 4, 8})
      EXPECT_TRUE(algorithm::canonical_over_groups(
          std::vector<int>(static_cast<std::size_t>(hosts), ranks)));
  EXPECT_TRUE(algorithm::canonical_over_groups(std::vector{4, 4, 3}));
  EXPECT_FALSE(algorithm::canonical_over_groups(std::vector{3, 3}));
  EXPECT_FALSE(algorithm::canonical_over_groups(std::vector{4, 2, 2}));
}

TEST(Shard, DoesNotOverflowNearTheLargestCount) {
  const std::int64_t count = (std::int64_t{1} << 62) + 5;
  EXPECT_EQ(algorithm::shard(count, 17, 16, 64).end, count);
}

TEST(Shard, RefusesInvalidArguments) {
  EXPECT_THROW(algorithm::shard(-1, 2, 0, 1), Error);
  EXPECT_THROW(algorithm::shard(1, 2, 2, 1), Error);
  EXPECT_THROW(algorithm::shard(1, 0, 0, 1), Error);
  EXPECT_THROW(algorithm::shard(1, 1, 0, 0), Error);
}

TEST(Slices, CoverTheCount) {
  for (const std::int64_t count : kCounts)
    for (const std::int64_t length : {1, 7, 4096}) {
      const algorithm::Slices slices{count, length};
      std::int64_t end = 0;
      for (std::int64_t i = 0; i < slices.number(); ++i) {
        const algorithm::Range range = slices.at(i);
        ASSERT_EQ(range.begin, end);
        ASSERT_FALSE(range.empty());
        end = range.end;
      }
      EXPECT_EQ(end, count);
      EXPECT_TRUE(slices.at(slices.number()).empty());
    }
}

// Simulates all ranks. A chunk is the list of ranks whose input it contains.
TEST(Ring, EveryRankEndsWithEveryChunkFromEveryRankExactlyOnce) {
  struct Parcel {
    int chunk = -1;
    std::map<int, int> from;  // rank -> how often it is contained
  };
  for (int size = 2; size <= 17; ++size) {
    std::vector<Parcel> box(static_cast<std::size_t>(size));
    std::vector<std::map<int, std::map<int, int>>> stored(static_cast<std::size_t>(size));
    for (int step = 0; step < algorithm::ring_steps(size); ++step) {
      const auto before = box;
      for (int rank = 0; rank < size; ++rank) {
        const algorithm::RingStep now = algorithm::ring_step(rank, size, step);
        const auto r = static_cast<std::size_t>(rank);
        Parcel parcel = before[static_cast<std::size_t>(algorithm::ring_left(rank, size))];
        if (now.action == algorithm::RingAction::send) parcel = {now.chunk, {}};
        ASSERT_EQ(parcel.chunk, now.chunk) << "rank " << rank << " of " << size;
        if (now.action != algorithm::RingAction::store &&
            now.action != algorithm::RingAction::store_and_send)
          ++parcel.from[rank];
        if (now.action != algorithm::RingAction::send &&
            now.action != algorithm::RingAction::reduce_and_send)
          stored[r][now.chunk] = parcel.from;
        box[r] = parcel;
      }
    }
    for (const auto& chunks : stored) {
      ASSERT_EQ(chunks.size(), static_cast<std::size_t>(size));
      for (const auto& [chunk, from] : chunks) {
        ASSERT_EQ(from.size(), static_cast<std::size_t>(size));
        for (const auto& [source, times] : from) EXPECT_EQ(times, 1) << source;
      }
    }
  }
}

TEST(Ring, NeighboursAreInverse) {
  for (int size = 2; size <= 17; ++size)
    for (int rank = 0; rank < size; ++rank)
      EXPECT_EQ(algorithm::ring_left(algorithm::ring_right(rank, size), size), rank);
  EXPECT_THROW(algorithm::ring_step(0, 2, 3), Error);
}

TEST(Choice, RefusesUnknownNamesAndListsTheValidOnes) {
  try {
    parse_algorithm("rings");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "'rings' is not an algorithm of collectives; did you mean ring? There are direct, "
                 "ring, inline, halving_doubling, recursive_doubling, tree, chain, sharded, bruck, "
                 "pairwise, dissemination, hierarchical");
  }
}

// Each element of each recv buffer comes from exactly one sender. A sender's parts for different
// receivers are either identical or disjoint.
void expect_tiled(const algorithm::Exchange& exchange) {
  const int size = exchange.size();
  for (int receiver = 0; receiver < size; ++receiver) {
    std::int64_t next = 0;
    for (int sender = 0; sender < size; ++sender) {
      const algorithm::Transfer t = exchange.at(sender, receiver);
      if (t.count == 0) continue;
      EXPECT_EQ(t.to, next);
      next = t.to + t.count;
      EXPECT_LE(t.from + t.count, exchange.sent(sender));
      EXPECT_LE(t.count, exchange.longest());
      EXPECT_TRUE(t.from == 0 || !exchange.shared());
    }
  }
}

TEST(Exchange, TilesReceiversForOneToSeventeenRanks) {
  for (int size = 1; size <= 17; ++size) {
    for (const std::int64_t count : {0, 1, 5}) {
      for (int root = 0; root < size; ++root) {
        expect_tiled(algorithm::Exchange::gather(size, count, root));
        EXPECT_EQ(algorithm::Exchange::scatter(size, count, root).sent(root), count * size);
        for (int rank = 0; rank < size; ++rank)
          EXPECT_EQ(algorithm::Exchange::scatter(size, count, root).at(root, rank),
                    (algorithm::Transfer{rank * count, 0, count}));
      }
      expect_tiled(algorithm::Exchange::all_to_all(size, count));
    }
    std::vector<std::int64_t> counts, pairs;
    for (int a = 0; a < size; ++a) {
      counts.push_back(a * 7 % 4);
      for (int b = 0; b < size; ++b) pairs.push_back((a * 3 + b * 5) % 4);
    }
    expect_tiled(algorithm::Exchange::all_gather(counts));
    const algorithm::Exchange unequal = algorithm::Exchange::all_to_all_v(size, pairs);
    expect_tiled(unequal);
    for (int sender = 0; sender < size; ++sender) {
      std::int64_t next = 0;
      for (int receiver = 0; receiver < size; ++receiver) {
        EXPECT_EQ(unequal.at(sender, receiver).from, next);
        next += unequal.at(sender, receiver).count;
      }
      EXPECT_EQ(unequal.sent(sender), next);
    }
  }
}

}  // namespace
}  // namespace shoal::collectives
