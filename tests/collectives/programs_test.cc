// Simulates every program generator for 1 to 17 ranks.
#include "shoal/collectives/algorithm/programs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "play.h"
#include <gtest/gtest.h>

#include "shoal/collectives/algorithm/builder.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

enum class Kind {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all
};

struct Game {
  Kind kind = Kind::all_reduce;
  Algorithm algorithm = Algorithm::direct;
  int size = 1, root = 0;
  std::int64_t count = 0;
  bool uneven = false;  // parts of different lengths, some empty
  algorithm::Slicing slicing = {};
  Arithmetic arithmetic = Arithmetic::integers;
  enum class InPlace { no, yes, some };
  InPlace in_place = InPlace::no;
  PlayOrder order = {};

  std::string text() const {
    return fmt::format(
        "kind {} {} of {} ranks, root {}, count {}{}, slice {}, granule {}, in place {}",
        static_cast<int>(kind), to_string(algorithm), size, root, count, uneven ? " uneven" : "",
        slicing.slice, slicing.granule, static_cast<int>(in_place));
  }
};

Element input_of(Arithmetic arithmetic, int rank, std::int64_t i) {
  // splitmix64
  Element bits = (static_cast<Element>(rank) << 40) + static_cast<Element>(i) + 1;
  bits *= 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  bits ^= bits >> 31;
  if (arithmetic == Arithmetic::integers || arithmetic == Arithmetic::expression) return bits;
  // Varying exponents make every order and rounding visible.
  const auto value =
      std::ldexp(static_cast<float>(bits % 4096) - 2048.0f, static_cast<int>(bits >> 60) - 8);
  return narrow(arithmetic, std::bit_cast<std::uint32_t>(value));
}

std::vector<std::int64_t> counts_of(const Game& game) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < game.size; ++rank)
    counts.push_back(game.uneven ? (rank * 7 + game.count) % 5 * (game.count / 3 + 1) - 1
                                 : game.count);
  for (auto& count : counts) count = std::max<std::int64_t>(count, 0);
  return counts;
}

// The number of elements that rank `from` sends to `to` in all_to_all.
std::int64_t exchanged(const Game& game, int from, int to) {
  return game.uneven ? (from * 3 + to * 5 + game.count) % 7 : game.count;
}
std::vector<std::int64_t> exchanges(const Game& game, int rank, bool sends) {
  std::vector<std::int64_t> counts;
  for (int peer = 0; peer < game.size; ++peer)
    counts.push_back(sends ? exchanged(game, rank, peer) : exchanged(game, peer, rank));
  return counts;
}

template <typename Numbers>
std::int64_t total(const Numbers& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

algorithm::Program program_of(const Game& g, int rank) {
  const algorithm::Member member{rank, g.size};
  const auto counts = counts_of(g);
  switch (g.kind) {
    case Kind::all_reduce:
      return algorithm::programs::all_reduce(g.algorithm, member, g.count, g.slicing);
    case Kind::reduce_scatter:
      return algorithm::programs::reduce_scatter(g.algorithm, member, counts, g.slicing);
    case Kind::all_gather:
      return algorithm::programs::all_gather(g.algorithm, member, counts, g.slicing);
    case Kind::broadcast:
      return algorithm::programs::broadcast(g.algorithm, member, g.count, g.root, g.slicing);
    case Kind::reduce:
      return algorithm::programs::reduce(g.algorithm, member, g.count, g.root, g.slicing);
    case Kind::gather:
      return algorithm::programs::gather(g.algorithm, member, g.count, g.root, g.slicing);
    case Kind::scatter:
      return algorithm::programs::scatter(g.algorithm, member, g.count, g.root, g.slicing);
    case Kind::all_to_all:
      return algorithm::programs::all_to_all(g.algorithm, member, exchanges(g, rank, true),
                                             exchanges(g, rank, false), g.slicing);
  }
  return {};
}

PlayedRank rank_of(const Game& g, int rank) {
  PlayedRank played;
  played.program = program_of(g, rank);
  const auto counts = counts_of(g);
  const auto before = std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
  std::int64_t shift = 0;  // in place: where input begins in output
  switch (g.kind) {
    case Kind::all_reduce:
      played.inputs = played.outputs = g.count;
      break;
    case Kind::reduce_scatter:
      played.inputs = total(counts);
      played.outputs = counts[static_cast<std::size_t>(rank)];
      shift = -before;
      break;
    case Kind::all_gather:
      played.inputs = counts[static_cast<std::size_t>(rank)];
      played.outputs = total(counts);
      shift = before;
      break;
    case Kind::broadcast:
      played.inputs = rank == g.root ? g.count : 0;
      played.outputs = g.count;
      break;
    case Kind::reduce:
      played.inputs = g.count;
      played.outputs = rank == g.root ? g.count : 0;
      break;
    case Kind::gather:
      played.inputs = g.count;
      played.outputs = rank == g.root ? g.count * g.size : 0;
      shift = rank * g.count;
      break;
    case Kind::scatter:
      played.inputs = rank == g.root ? g.count * g.size : 0;
      played.outputs = g.count;
      shift = -rank * g.count;
      break;
    case Kind::all_to_all:
      played.inputs = total(exchanges(g, rank, true));
      played.outputs = total(exchanges(g, rank, false));
      break;
  }
  bool in_place =
      g.in_place == Game::InPlace::yes || (g.in_place == Game::InPlace::some && rank % 2 == 0);
  if ((g.kind == Kind::gather || g.kind == Kind::scatter || g.kind == Kind::reduce) &&
      rank != g.root)
    in_place = false;
  if (g.kind == Kind::all_to_all) in_place = false;
  if (g.kind == Kind::broadcast) in_place = true;
  if (in_place) {
    played.input_at = std::max<std::int64_t>(shift, 0);
    played.output_at = std::max<std::int64_t>(-shift, 0);
  } else {
    played.output_at = played.inputs;
  }
  played.memory.assign(static_cast<std::size_t>(std::max(played.input_at + played.inputs,
                                                         played.output_at + played.outputs)),
                       0xdeadu);
  for (std::int64_t i = 0; i < played.inputs; ++i)
    played.memory[static_cast<std::size_t>(played.input_at + i)] = input_of(g.arithmetic, rank, i);
  return played;
}

Played play_game(const Game& g) {
  std::vector<PlayedRank> ranks;
  for (int rank = 0; rank < g.size; ++rank) ranks.push_back(rank_of(g, rank));
  return play(std::move(ranks), g.arithmetic, g.order);
}

Element sum_of(const Game& g, std::int64_t i) {
  Element sum = 0;
  for (int rank = 0; rank < g.size; ++rank) sum += input_of(Arithmetic::integers, rank, i);
  return g.size > 1 ? sum * kFinish : sum;
}

std::vector<Element> expected(const Game& g, int rank) {
  std::vector<Element> result;
  const auto counts = counts_of(g);
  const auto copied = [&](int from, std::int64_t begin, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      result.push_back(input_of(Arithmetic::integers, from, begin + i));
  };
  const auto summed = [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) result.push_back(sum_of(g, begin + i));
  };
  switch (g.kind) {
    case Kind::all_reduce:
      summed(0, g.count);
      break;
    case Kind::reduce_scatter:
      summed(std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0}),
             counts[static_cast<std::size_t>(rank)]);
      break;
    case Kind::all_gather:
      for (int from = 0; from < g.size; ++from)
        copied(from, 0, counts[static_cast<std::size_t>(from)]);
      break;
    case Kind::broadcast:
      copied(g.root, 0, g.count);
      break;
    case Kind::reduce:
      if (rank == g.root) summed(0, g.count);
      break;
    case Kind::gather:
      for (int from = 0; rank == g.root && from < g.size; ++from) copied(from, 0, g.count);
      break;
    case Kind::scatter:
      copied(g.root, rank * g.count, g.count);
      break;
    case Kind::all_to_all:
      for (int from = 0; from < g.size; ++from) {
        const auto sends = exchanges(g, from, true);
        copied(from, std::accumulate(sends.begin(), sends.begin() + rank, std::int64_t{0}),
               sends[static_cast<std::size_t>(rank)]);
      }
      break;
  }
  return result;
}

struct Pair {
  Kind kind;
  Algorithm algorithm;
};
const std::vector<Pair> kPairs = {{Kind::all_reduce, Algorithm::ring},
                                  {Kind::all_reduce, Algorithm::halving_doubling},
                                  {Kind::all_reduce, Algorithm::recursive_doubling},
                                  {Kind::all_reduce, Algorithm::tree},
                                  {Kind::all_reduce, Algorithm::direct},
                                  {Kind::reduce_scatter, Algorithm::ring},
                                  {Kind::reduce_scatter, Algorithm::halving_doubling},
                                  {Kind::reduce_scatter, Algorithm::direct},
                                  {Kind::all_gather, Algorithm::ring},
                                  {Kind::all_gather, Algorithm::halving_doubling},
                                  {Kind::all_gather, Algorithm::bruck},
                                  {Kind::all_gather, Algorithm::direct},
                                  {Kind::broadcast, Algorithm::tree},
                                  {Kind::broadcast, Algorithm::chain},
                                  {Kind::broadcast, Algorithm::sharded},
                                  {Kind::reduce, Algorithm::tree},
                                  {Kind::reduce, Algorithm::chain},
                                  {Kind::reduce, Algorithm::sharded},
                                  {Kind::reduce, Algorithm::direct},
                                  {Kind::gather, Algorithm::tree},
                                  {Kind::gather, Algorithm::direct},
                                  {Kind::scatter, Algorithm::tree},
                                  {Kind::scatter, Algorithm::direct},
                                  {Kind::all_to_all, Algorithm::pairwise},
                                  {Kind::all_to_all, Algorithm::direct}};

bool has_parts(Kind kind) {
  return kind == Kind::reduce_scatter || kind == Kind::all_gather || kind == Kind::all_to_all;
}
bool has_root(Kind kind) {
  return kind == Kind::broadcast || kind == Kind::reduce || kind == Kind::gather ||
         kind == Kind::scatter;
}

bool reduces(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce_scatter || kind == Kind::reduce;
}

class Programs : public testing::TestWithParam<Pair> {
 protected:
  // Visits all shapes for one number of ranks.
  static void for_each_shape(Pair pair, int size, const std::function<void(Game)>& visit) {
    for (const std::int64_t count : {0, 1, size - 1, 37, 211})
      for (const algorithm::Slicing slicing :
           {algorithm::Slicing{0, 1}, algorithm::Slicing{0, 16}, algorithm::Slicing{5, 1},
            algorithm::Slicing{32, 16}})
        for (const bool uneven : {false, true})
          for (const int root : std::set<int>{0, size / 2, size - 1}) {
            if ((uneven && !has_parts(pair.kind)) || (root > 0 && !has_root(pair.kind))) continue;
            if (has_parts(pair.kind) && slicing.granule > 1) continue;    // the parts decide
            if (count > 100 && slicing.slice == 5 && size > 6) continue;  // thousands of messages
            if (count > 100 && has_parts(pair.kind) && size % 4 == 3) continue;
            visit({pair.kind, pair.algorithm, size, root, count, uneven, slicing});
          }
  }
};

class Reductions : public Programs {};
class Rootless : public Programs {};

TEST_P(Programs, GiveEveryRankTheExactResultInAnyOrderOfEvents) {
  std::uint64_t turn = 0;
  for (int size = 1; size <= 17; ++size)
    for_each_shape(GetParam(), size, [&](Game game) {
      // Cycle through the three ways to be in place and the four orders.
      game.in_place = static_cast<Game::InPlace>(turn % 3);
      game.order = {turn % 4 < 2 ? 0 : turn + 1, turn % 2 == 0};
      ++turn;
      try {
        const Played played = play_game(game);
        for (int rank = 0; rank < size; ++rank)
          ASSERT_EQ(played.outputs[static_cast<std::size_t>(rank)], expected(game, rank))
              << "rank " << rank << ": " << game.text();
      } catch (const std::logic_error& problem) {
        FAIL() << problem.what() << ": " << game.text();
      }
    });
}

TEST_P(Reductions, GiveAllRanksTheSameBitsInAnyOrder) {
  for (const Arithmetic arithmetic : {Arithmetic::f32, Arithmetic::bf16, Arithmetic::expression})
    for (int size = 2; size <= 17; ++size) {
      Game game{GetParam().kind, GetParam().algorithm, size, size / 3, 67, false, {8, 1},
                arithmetic};
      const Played first = play_game(game);
      for (std::uint64_t seed = 1; seed < 4; ++seed) {
        game.order = {seed, seed % 2 == 0};
        game.in_place = static_cast<Game::InPlace>(seed % 3);
        EXPECT_EQ(play_game(game).outputs, first.outputs) << game.text();
      }
      if (game.kind == Kind::all_reduce)
        for (const auto& output : first.outputs) {
          EXPECT_EQ(output, first.outputs[0]) << game.text();
        }
    }
}

TEST_P(Reductions, SumByTheCanonicalTreeIfTheyClaimIt) {
  for (int size = 1; size <= 17; ++size)
    for (const int root : std::set<int>{0, size - 1}) {
      if (root > 0 && !has_root(GetParam().kind)) continue;
      const Game game{GetParam().kind, GetParam().algorithm,  size, root, 2 * size, false,
                      {5, 1},          Arithmetic::expression};
      const Played played = play_game(game);
      bool canonical = true;
      for (int rank = 0; rank < size; ++rank) {
        const auto& output = played.outputs[static_cast<std::size_t>(rank)];
        const std::int64_t begin =
            game.kind == Kind::reduce_scatter ? rank * std::ssize(output) : 0;
        for (std::int64_t i = 0; i < std::ssize(output); ++i) {
          std::vector<Element> terms;
          for (int r = 0; r < size; ++r)
            terms.push_back(input_of(Arithmetic::expression, r, begin + i));
          canonical = canonical && output[static_cast<std::size_t>(i)] ==
                                       canonical_sum(Arithmetic::expression, terms);
        }
      }
      const bool says = algorithm::programs::sums_canonically(game.algorithm, size, root);
      // With two or three ranks, others match it by chance.
      EXPECT_TRUE(says ? canonical : !canonical || size <= 3) << game.text();
    }
}

TEST_P(Reductions, RoundSixteenBitSumsOnce) {
  // 1 + 17 × 2^-9: one by one, the small terms vanish in bf16 but not in f32.
  for (int size = 2; size <= 17; ++size) {
    std::vector<PlayedRank> ranks;
    const Game game{GetParam().kind, GetParam().algorithm, size, 0, 33, false,
                    {4, 1},          Arithmetic::bf16};
    float sum = 0;
    for (int rank = 0; rank < size; ++rank) {
      PlayedRank played = rank_of(game, rank);
      const float value = rank == 0 ? 1.0f : 0x1p-9f;
      sum += value;
      for (std::int64_t i = 0; i < played.inputs; ++i)
        played.memory[static_cast<std::size_t>(i)] = std::bit_cast<std::uint32_t>(value);
      ranks.push_back(std::move(played));
    }
    const Played played = play(std::move(ranks), Arithmetic::bf16, {});
    for (const auto& output : played.outputs)
      for (const Element element : output)
        EXPECT_EQ(element, narrow(Arithmetic::bf16, std::bit_cast<std::uint32_t>(sum)))
            << size << " ranks";
  }
}

TEST_P(Rootless, StartWithDifferentPeers) {
  const bool by_pairs = GetParam().algorithm == Algorithm::halving_doubling ||
                        GetParam().algorithm == Algorithm::recursive_doubling;
  for (int size = 2; size <= 17; ++size) {
    if (by_pairs && !std::has_single_bit(static_cast<unsigned>(size))) continue;
    const Played played =
        play_game({GetParam().kind, GetParam().algorithm, size, 0, 4 * size, false, {0, 1}});
    std::set<int> peers;
    for (const int peer : played.first_peer)
      if (peer >= 0) {
        EXPECT_TRUE(peers.insert(peer).second) << size << " ranks, peer " << peer;
      }
  }
}

std::string name_of(const testing::TestParamInfo<Pair>& info) {
  constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                    "reduce",     "gather",         "scatter",    "all_to_all"};
  return fmt::format("{}_{}", kNames[static_cast<std::size_t>(info.param.kind)],
                     to_string(info.param.algorithm));
}
template <typename Condition>
std::vector<Pair> pairs_that(Condition condition) {
  std::vector<Pair> pairs;
  std::copy_if(kPairs.begin(), kPairs.end(), std::back_inserter(pairs), condition);
  return pairs;
}
INSTANTIATE_TEST_SUITE_P(Every, Programs, testing::ValuesIn(kPairs), name_of);
INSTANTIATE_TEST_SUITE_P(Every, Reductions, testing::ValuesIn(pairs_that([](const Pair& pair) {
                           return reduces(pair.kind);
                         })),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Every, Rootless, testing::ValuesIn(pairs_that([](const Pair& pair) {
                           return !has_root(pair.kind) && pair.algorithm != Algorithm::tree;
                         })),
                         name_of);

int log2_up(int n) {
  int steps = 0;
  while ((1 << steps) < n) ++steps;
  return steps;
}

TEST(ProgramCosts, BytesAndStepsMatchTheDocumentation) {
  for (int n = 2; n <= 17; ++n) {
    const std::int64_t s = 240 * n;  // divisible by every number of shards except powers of two
    const auto played = [&](Kind kind, Algorithm algorithm, std::int64_t count) {
      return play_game({kind, algorithm, n, 0, count, false, {0, 1}});
    };
    // A chain may be shorter if ranks are missing from the last step.
    const auto expect_steps = [&](int steps, int bound) {
      EXPECT_LE(steps, bound) << n;
      if (std::has_single_bit(static_cast<unsigned>(n))) {
        EXPECT_EQ(steps, bound) << n;
      }
    };
    const auto most = [](const Played& p) {
      std::int64_t sent = 0;
      for (std::size_t r = 0; r < p.sent.size(); ++r)
        sent = std::max(sent, p.sent[r] + p.sent_partial[r]);
      return sent;
    };
    const std::int64_t half = s / n * (n - 1);  // (n - 1)/n S
    const Played ring = played(Kind::all_reduce, Algorithm::ring, s);
    EXPECT_EQ(most(ring), 2 * half);
    EXPECT_EQ(ring.sent_partial[0], s / n * (n - 2));
    EXPECT_EQ(ring.steps, 2 * (n - 1));
    const Played direct = played(Kind::all_reduce, Algorithm::direct, s);
    EXPECT_EQ(most(direct), 2 * half);
    EXPECT_EQ(direct.sent_partial, std::vector<std::int64_t>(static_cast<std::size_t>(n), 0));
    EXPECT_EQ(direct.steps, 2);
    const bool power = (n & (n - 1)) == 0;
    const int log = log2_up(n), fold = power ? 0 : 2, core = power ? log : log - 1;
    const Played halving = played(Kind::all_reduce, Algorithm::halving_doubling, s);
    expect_steps(halving.steps, 2 * core + fold);
    if (power) {
      EXPECT_EQ(most(halving), 2 * half);
    }
    EXPECT_LE(most(halving), 3 * s);
    const Played doubling = played(Kind::all_reduce, Algorithm::recursive_doubling, s);
    expect_steps(doubling.steps, core + fold);
    expect_steps(played(Kind::all_reduce, Algorithm::tree, s).steps, 2 * log);
    EXPECT_EQ(most(played(Kind::reduce_scatter, Algorithm::direct, s / n)), half);
    EXPECT_EQ(most(played(Kind::reduce_scatter, Algorithm::ring, s / n)), half);
    EXPECT_EQ(most(played(Kind::all_gather, Algorithm::ring, s / n)), half);
    const Played bruck = played(Kind::all_gather, Algorithm::bruck, s / n);
    EXPECT_EQ(most(bruck), half);
    expect_steps(bruck.steps, log);
    expect_steps(played(Kind::broadcast, Algorithm::tree, s).steps, log);
    EXPECT_EQ(most(played(Kind::broadcast, Algorithm::chain, s)), s);
    EXPECT_EQ(played(Kind::broadcast, Algorithm::chain, s).steps, n - 1);
    EXPECT_EQ(most(played(Kind::broadcast, Algorithm::sharded, s)), s);
    EXPECT_EQ(played(Kind::broadcast, Algorithm::sharded, s).steps, n == 2 ? 1 : 2);
    EXPECT_LE(most(played(Kind::reduce, Algorithm::sharded, s)), s);
    EXPECT_EQ(played(Kind::reduce, Algorithm::sharded, s).steps, n == 2 ? 1 : 2);
    expect_steps(played(Kind::gather, Algorithm::tree, s / n).steps, log);
    expect_steps(played(Kind::scatter, Algorithm::tree, s / n).steps, log);
    EXPECT_EQ(played(Kind::gather, Algorithm::direct, s / n).steps, 1);
    EXPECT_EQ(played(Kind::all_to_all, Algorithm::pairwise, s / n).steps, n - 1);
    EXPECT_EQ(played(Kind::all_to_all, Algorithm::direct, s / n).steps, 1);
    EXPECT_EQ(most(played(Kind::all_to_all, Algorithm::pairwise, s / n)), half);
  }
}

TEST(ProgramCosts, ScratchOfSlicedAlgorithmsDoesNotGrowWithTheData) {
  const std::int64_t slice = 1 << 10, count = 1 << 20;
  for (int n : {2, 5, 8}) {
    const algorithm::Program tree =
        algorithm::programs::all_reduce(Algorithm::tree, {0, n}, count, {slice, 1});
    EXPECT_LE(tree.scratch + tree.partial, algorithm::kSlicesInFlight * slice * n);
    const algorithm::Program direct =
        algorithm::programs::all_reduce(Algorithm::direct, {0, n}, count, {slice, 1});
    EXPECT_LE(direct.scratch + direct.partial, algorithm::kSlicesInFlight * slice * n);
    const algorithm::Program ring =
        algorithm::programs::all_reduce(Algorithm::ring, {0, n}, count, {slice, 1});
    EXPECT_LE(ring.scratch + ring.partial, 4 * (count / n + 1));
  }
}

TEST(Barrier, EveryRankLearnsOfEveryOther) {
  for (int n = 1; n <= 17; ++n) {
    // Each rank's first message is a signal. Simulate how knowledge spreads along `after`.
    std::vector<PlayedRank> ranks(static_cast<std::size_t>(n));
    std::vector<algorithm::Program> all;
    for (int rank = 0; rank < n; ++rank) {
      all.push_back(algorithm::programs::barrier({rank, n}));
      ranks[static_cast<std::size_t>(rank)].program = all.back();
    }
    for (const std::uint64_t seed : {0U, 3U, 4U})
      EXPECT_EQ(play(ranks, Arithmetic::integers, {seed, seed == 3}).steps, log2_up(n));
    std::vector<std::set<int>> known(static_cast<std::size_t>(n));
    for (int rank = 0; rank < n; ++rank) known[static_cast<std::size_t>(rank)] = {rank};
    for (int distance = 1; distance < n; distance *= 2) {
      const auto before = known;
      for (int rank = 0; rank < n; ++rank) {
        const auto& from = before[static_cast<std::size_t>((rank - distance + n) % n)];
        known[static_cast<std::size_t>(rank)].insert(from.begin(), from.end());
      }
    }
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_EQ(known[static_cast<std::size_t>(rank)].size(), static_cast<std::size_t>(n));
      const auto& instructions = all[static_cast<std::size_t>(rank)].instructions;
      EXPECT_EQ(instructions.size(), static_cast<std::size_t>(2 * log2_up(n)));
      // A message of step k leaves after that of step k - 1 has arrived.
      for (std::size_t i = 2; i < instructions.size(); ++i)
        EXPECT_EQ(instructions[i].after, std::vector<int>{static_cast<int>((i - 2) / 2 * 2 + 1)});
    }
  }
}

TEST(ProgramsRefuse, AlgorithmsThatAnOperationLacks) {
  try {
    algorithm::programs::broadcast(Algorithm::ring, {0, 2}, 1, 0, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "broadcast has no algorithm ring between hosts; it has tree, chain, sharded");
  }
  const std::int64_t counts[] = {1, 2};
  EXPECT_THROW(algorithm::programs::all_gather(Algorithm::ring, {0, 3}, counts, {}), Error);
  EXPECT_THROW(algorithm::programs::reduce(Algorithm::tree, {0, 3}, 1, 3, {}), Error);
  EXPECT_THROW(algorithm::programs::all_reduce(Algorithm::tree, {3, 3}, 1, {}), Error);
  EXPECT_THROW(algorithm::programs::all_reduce(Algorithm::tree, {0, 3}, -1, {}), Error);
  EXPECT_THROW(algorithm::programs::all_reduce(Algorithm::tree, {0, 3}, 1, {-1, 1}), Error);
  EXPECT_THROW(algorithm::programs::all_to_all(Algorithm::direct, {0, 2}, counts, {{2, 2}}, {}),
               Error);
}

}  // namespace
}  // namespace shoal::collectives
