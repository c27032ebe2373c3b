#include "shoal/collectives/algorithm/programs.h"

#include <array>

#include <fmt/ranges.h>

#include "shoal/collectives/algorithm/canonical_tree.h"
#include "shoal/collectives/algorithm/generators.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::algorithm::programs {
namespace {

template <typename Generator>
struct Row {
  Algorithm algorithm;
  Generator* generate;
};

template <typename Generator, std::size_t size, typename... Arguments>
Program generate(const char* operation, const std::array<Row<Generator>, size>& rows,
                 Algorithm algorithm, Arguments... arguments) {
  for (const auto& row : rows)
    if (row.algorithm == algorithm) return row.generate(arguments...);
  std::vector<std::string_view> names;
  for (const auto& row : rows) names.push_back(to_string(row.algorithm));
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} has no algorithm {} between hosts", operation, to_string(algorithm)),
              fmt::format("it has {}", fmt::join(names, ", ")));
}

void check(Member member, std::int64_t count, int root, Slicing slicing) {
  SHOAL_CHECK(member.size > 0 && member.rank >= 0 && member.rank < member.size,
              "a program for rank {} of {}", member.rank, member.size);
  SHOAL_CHECK(count >= 0, "a program for {} elements", count);
  SHOAL_CHECK(root >= 0 && root < member.size, "a program with root {} of {}", root, member.size);
  SHOAL_CHECK(slicing.slice >= 0 && slicing.granule > 0, "slices of {} elements, granules of {}",
              slicing.slice, slicing.granule);
}

void check(Member member, PartCounts counts, Slicing slicing) {
  check(member, 0, 0, slicing);
  SHOAL_CHECK(std::ssize(counts) == member.size, "{} counts for {} ranks", counts.size(),
              member.size);
}

using Counted = Program(Member, std::int64_t, Slicing);
using Parted = Program(Member, PartCounts, Slicing);
using Rooted = Program(Member, std::int64_t, int, Slicing);
using Exchanged = Program(Member, PartCounts, PartCounts, Slicing);

Program whole_gather(Member member, std::int64_t count, int root, Slicing) {
  return generators::tree_gather(member, count, root);
}
Program whole_scatter(Member member, std::int64_t count, int root, Slicing) {
  return generators::tree_scatter(member, count, root);
}

}  // namespace

bool sums_canonically(Algorithm algorithm, int size, int root) {
  switch (algorithm) {
    case Algorithm::direct:
      return true;
    case Algorithm::tree:  // binomial, relative to the root
      return root == 0;
    case Algorithm::recursive_doubling:
      return recursive_doubling_is_canonical(size);
    default:
      return size == 1;
  }
}

Program all_reduce(Algorithm algorithm, Member member, std::int64_t count, Slicing slicing) {
  check(member, count, 0, slicing);
  constexpr std::array<Row<Counted>, 5> kRows{
      {{Algorithm::ring, generators::ring_all_reduce},
       {Algorithm::halving_doubling, generators::halving_doubling_all_reduce},
       {Algorithm::recursive_doubling, generators::recursive_doubling_all_reduce},
       {Algorithm::tree, generators::tree_all_reduce},
       {Algorithm::direct, generators::direct_all_reduce}}};
  return generate("all_reduce", kRows, algorithm, member, count, slicing);
}

Program reduce_scatter(Algorithm algorithm, Member member, PartCounts counts, Slicing slicing) {
  check(member, counts, slicing);
  constexpr std::array<Row<Parted>, 3> kRows{
      {{Algorithm::ring, generators::ring_reduce_scatter},
       {Algorithm::halving_doubling, generators::halving_reduce_scatter},
       {Algorithm::direct, generators::direct_reduce_scatter}}};
  return generate("reduce_scatter", kRows, algorithm, member, counts, slicing);
}

Program all_gather(Algorithm algorithm, Member member, PartCounts counts, Slicing slicing) {
  check(member, counts, slicing);
  constexpr std::array<Row<Parted>, 4> kRows{
      {{Algorithm::ring, generators::ring_all_gather},
       {Algorithm::halving_doubling, generators::doubling_all_gather},
       {Algorithm::bruck, generators::bruck_all_gather},
       {Algorithm::direct, generators::direct_all_gather}}};
  return generate("all_gather", kRows, algorithm, member, counts, slicing);
}

Program broadcast(Algorithm algorithm, Member member, std::int64_t count, int root,
                  Slicing slicing) {
  check(member, count, root, slicing);
  constexpr std::array<Row<Rooted>, 3> kRows{{{Algorithm::tree, generators::tree_broadcast},
                                              {Algorithm::chain, generators::chain_broadcast},
                                              {Algorithm::sharded, generators::sharded_broadcast}}};
  return generate("broadcast", kRows, algorithm, member, count, root, slicing);
}

Program reduce(Algorithm algorithm, Member member, std::int64_t count, int root, Slicing slicing) {
  check(member, count, root, slicing);
  constexpr std::array<Row<Rooted>, 4> kRows{{{Algorithm::tree, generators::tree_reduce},
                                              {Algorithm::direct, generators::direct_reduce},
                                              {Algorithm::chain, generators::chain_reduce},
                                              {Algorithm::sharded, generators::sharded_reduce}}};
  return generate("reduce", kRows, algorithm, member, count, root, slicing);
}

Program gather(Algorithm algorithm, Member member, std::int64_t count, int root, Slicing slicing) {
  check(member, count, root, slicing);
  constexpr std::array<Row<Rooted>, 2> kRows{
      {{Algorithm::tree, whole_gather}, {Algorithm::direct, generators::direct_gather}}};
  return generate("gather", kRows, algorithm, member, count, root, slicing);
}

Program scatter(Algorithm algorithm, Member member, std::int64_t count, int root, Slicing slicing) {
  check(member, count, root, slicing);
  constexpr std::array<Row<Rooted>, 2> kRows{
      {{Algorithm::tree, whole_scatter}, {Algorithm::direct, generators::direct_scatter}}};
  return generate("scatter", kRows, algorithm, member, count, root, slicing);
}

Program all_to_all(Algorithm algorithm, Member member, PartCounts send_counts,
                   PartCounts recv_counts, Slicing slicing) {
  check(member, send_counts, slicing);
  check(member, recv_counts, slicing);
  constexpr std::array<Row<Exchanged>, 2> kRows{
      {{Algorithm::pairwise, generators::pairwise_all_to_all},
       {Algorithm::direct, generators::direct_all_to_all}}};
  return generate("all_to_all", kRows, algorithm, member, send_counts, recv_counts, slicing);
}

// Hensgen, Finkel and Manber, 1988: after step k every rank has data of 2^(k + 1) ranks.
Program barrier(Member member) {
  check(member, 0, 0, {});
  ProgramBuilder b(member, std::nullopt);
  int heard = -1;
  for (int distance = 1; distance < member.size; distance *= 2) {
    b.signal(b.neighbour(distance), {heard});
    // The next message also carries everything that this rank has received.
    heard = b.await(b.neighbour(-distance), {heard});
  }
  return b.take();
}

}  // namespace shoal::collectives::algorithm::programs
