// GPipe, 1F1B and Megatron-LM's interleaved 1F1B.
#include <algorithm>

#include "shoal/parallel/pipeline/generators.h"

namespace shoal::parallel {
namespace {

struct Turn {
  int chunk, microbatch;
};

// How many microbatches go through a chunk at a time. A last group shorter than the pipeline would
// leave ranks waiting for it: then they are shared out evenly over one group fewer, the longest
// first, because the warmup is as long as the first group asks.
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

// The order in which a rank's chunks meet the microbatches: a group of them through the first
// chunk, then the same through the second ...
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

// Forwards before a rank's first backward.
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

ComputeLists interleaved_lists(const ScheduleOptions& o) {
  const std::vector<Turn> order = turns(o);
  const std::size_t all = order.size();
  ComputeLists lists;
  for (int rank = 0; rank < o.ranks; ++rank) {
    auto& list = lists.emplace_back();
    const auto forward = [&](std::size_t i) {
      list.push_back({ActionKind::forward, order[i].chunk * o.ranks + rank, order[i].microbatch});
    };
    // Backwards go through the chunks from the last to the first.
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
