// GPipe, 1F1B, and 1F1B with virtual stages (Megatron-LM's interleaved schedule).
#include <algorithm>

#include "shoal/parallel/pipeline/generators.h"

namespace shoal::parallel {
namespace {

struct Turn {
  int chunk, microbatch;
};

// Sizes of the groups of microbatches that go through a chunk together. Ranks would wait for a last
// group shorter than the pipeline. So its microbatches are distributed over the other groups,
// starting with the first.
std::vector<int> group_lengths(const ScheduleOptions& o) {
  const int group = std::min(o.group == 0 ? o.ranks : o.group, o.microbatches);
  const int rest = o.microbatches % group;
  std::vector<int> lengths(static_cast<std::size_t>(o.microbatches / group), group);
  if (rest >= o.ranks)
    lengths.push_back(rest);
  else
    for (int k = 0; k < rest; ++k) ++lengths[static_cast<std::size_t>(k) % lengths.size()];
  return lengths;
}

// The order in which a rank's chunks process microbatches: a group through the first chunk, then
// the same group through the second, ...
std::vector<Turn> turns(const ScheduleOptions& o) {
  std::vector<Turn> order;
  int first = 0;
  for (const int length : group_lengths(o)) {
    for (int chunk = 0; chunk < o.chunks; ++chunk)
      for (int m = first; m < first + length; ++m) order.push_back({chunk, m});
    first += length;
  }
  return order;
}

// Number of forwards before a rank's first backward.
int warmup(const ScheduleOptions& o, const std::vector<Turn>& order, int rank) {
  const int all = static_cast<int>(order.size());
  if (o.chunks == 1) return std::min(o.ranks - rank - 1, all);
  const int group = group_lengths(o).front();
  return std::min(2 * (o.ranks - rank - 1) + (o.chunks - 1) * group, all);
}

}  // namespace

ComputeLists simple_lists(const ScheduleOptions& o) {
  ComputeLists lists;
  for (int rank = 0; rank < o.ranks; ++rank) {
    auto& list = lists.emplace_back();
    for (int m = 0; m < o.microbatches; ++m) list.push_back({ActionKind::forward, rank, m});
    for (int m = 0; m < o.microbatches && !o.forward_only; ++m)
      list.push_back({ActionKind::backward, rank, m});
  }
  return lists;
}

ComputeLists one_f_one_b_lists(const ScheduleOptions& o) {
  const std::vector<Turn> order = turns(o);
  const std::size_t all = order.size();
  ComputeLists lists;
  for (int rank = 0; rank < o.ranks; ++rank) {
    auto& list = lists.emplace_back();
    const auto forward = [&](std::size_t i) {
      list.push_back({ActionKind::forward, order[i].chunk * o.ranks + rank, order[i].microbatch});
    };
    // Backwards go from the last chunk to the first.
    const auto backward = [&](std::size_t i) {
      list.push_back({ActionKind::backward, (o.chunks - 1 - order[i].chunk) * o.ranks + rank,
                      order[i].microbatch});
    };
    const auto warm =
        static_cast<std::size_t>(o.forward_only ? static_cast<int>(all) : warmup(o, order, rank));
    for (std::size_t i = 0; i < warm; ++i) forward(i);
    if (o.forward_only) continue;
    for (std::size_t i = warm; i < all; ++i) {
      forward(i);
      backward(i - warm);
    }
    for (std::size_t i = all - warm; i < all; ++i) backward(i);
  }
  return lists;
}

}  // namespace shoal::parallel
