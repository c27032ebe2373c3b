// SMP's "interleaved". SMP chooses the order at run time; here it is generated in advance.
#include <algorithm>
#include <limits>

#include "shoal/parallel/pipeline/generators.h"

namespace shoal::parallel {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Game {
 public:
  explicit Game(const ScheduleOptions& options)
      : o_(options),
        active_(options.active_microbatches == 0 ? options.ranks + 2 : options.active_microbatches),
        lists_(size(options.ranks)),
        free_at_(size(options.ranks), 0.0),
        forwards_(size(options.ranks), 0),
        backwards_(size(options.ranks), 0),
        arrived_(size(options.ranks), std::vector<double>(size(options.microbatches), kNever)),
        returned_(arrived_) {
    std::fill(arrived_[0].begin(), arrived_[0].end(), 0.0);
  }

  // Each rank takes microbatches in order in both directions. It does a backward next if the
  // gradient has arrived, otherwise a forward. The rank with the earliest time moves first; ties go
  // to the lowest rank.
  ComputeLists play() && {
    const int each = o_.microbatches * (o_.forward_only ? 1 : 2);
    for (int left = each * o_.ranks; left > 0; --left) {
      int best = 0;
      double soonest = kNever;
      for (int rank = 0; rank < o_.ranks; ++rank)
        if (const double at = next_start(rank); at < soonest) best = rank, soonest = at;
      move(best, soonest);
    }
    return std::move(lists_);
  }

 private:
  static std::size_t size(int n) { return static_cast<std::size_t>(n); }

  double forward_start(int rank) const {
    const int m = forwards_[size(rank)];
    if (m == o_.microbatches) return kNever;
    double at = arrived_[size(rank)][size(m)];
    // A microbatch enters only after the first stage has finished the backward of an earlier one.
    if (rank == 0 && !o_.forward_only && m >= active_ && backwards_[0] <= m - active_)
      return kNever;
    return std::max(at, free_at_[size(rank)]);
  }
  double backward_start(int rank) const {
    const int m = backwards_[size(rank)];
    if (o_.forward_only || m == o_.microbatches) return kNever;
    return std::max(returned_[size(rank)][size(m)], free_at_[size(rank)]);
  }
  double next_start(int rank) const { return std::min(forward_start(rank), backward_start(rank)); }

  void move(int rank, double at) {
    const StageCosts& costs = o_.costs.of(rank);
    const bool back = backward_start(rank) <= at;
    int& count = (back ? backwards_ : forwards_)[size(rank)];
    const int m = count++;
    lists_[size(rank)].push_back({back ? ActionKind::backward : ActionKind::forward, rank, m});
    const double end = at + o_.costs.overhead +
                       (back ? costs.input_backward + costs.weight_backward : costs.forward);
    free_at_[size(rank)] = end;
    const double there = end + o_.costs.message;
    if (back && rank > 0) returned_[size(rank - 1)][size(m)] = there;
    if (!back && rank + 1 < o_.ranks) arrived_[size(rank + 1)][size(m)] = there;
    if (!back && rank + 1 == o_.ranks) returned_[size(rank)][size(m)] = end;
  }

  const ScheduleOptions& o_;
  int active_;
  ComputeLists lists_;
  std::vector<double> free_at_;
  std::vector<int> forwards_, backwards_;                // by rank: number done
  std::vector<std::vector<double>> arrived_, returned_;  // by rank, microbatch: times
};

}  // namespace

ComputeLists interleaved_lists(const ScheduleOptions& options) { return Game(options).play(); }

}  // namespace shoal::parallel
