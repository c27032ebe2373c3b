// Schedules that split backward in two: the input's gradient (I), which the previous stage waits
// for, and the weights' gradient (W). No stage waits for W, so it fills idle time.
#include <algorithm>

#include "shoal/parallel/pipeline/generators.h"

namespace shoal::parallel {
namespace {

// Builds one rank's list: counts how far each of its chunks is in F, I and W.
class RankList {
 public:
  RankList(int microbatches, std::vector<int> stages)
      : microbatches_(microbatches), stages_(std::move(stages)), done_(stages_.size()) {}

  bool forward(int chunk) { return add(ActionKind::forward, chunk, &Done::forwards, true); }
  bool input(int chunk) {
    return add(ActionKind::input_backward, chunk, &Done::inputs,
               at(chunk).inputs < at(chunk).forwards);
  }
  bool weight(int chunk) {
    return add(ActionKind::weight_backward, chunk, &Done::weights,
               at(chunk).weights < at(chunk).inputs);
  }
  int forwards(int chunk) { return at(chunk).forwards; }
  int inputs(int chunk) { return at(chunk).inputs; }
  std::vector<Action> take() && { return std::move(list_); }

 private:
  struct Done {
    int forwards = 0, inputs = 0, weights = 0;
  };
  Done& at(int chunk) { return done_[static_cast<std::size_t>(chunk)]; }
  bool add(ActionKind kind, int chunk, int Done::* count, bool may) {
    int& number = at(chunk).*count;
    if (!may || number == microbatches_) return false;
    list_.push_back({kind, stages_[static_cast<std::size_t>(chunk)], number++});
    return true;
  }

  int microbatches_;
  std::vector<int> stages_;
  std::vector<Done> done_;
  std::vector<Action> list_;
};

}  // namespace

// 1F1B in which rank r delays W by r microbatches. Each rank then holds at most p microbatches, and
// r W remain for its cooldown.
ComputeLists zero_bubble_lists(const ScheduleOptions& o) {
  ComputeLists lists;
  for (int rank = 0; rank < o.ranks; ++rank) {
    RankList list(o.microbatches, {rank});
    for (int i = 0; i < o.ranks - rank - 1; ++i) list.forward(0);
    if (o.forward_only) {
      while (list.forward(0)) {
      }
    } else {
      while (list.inputs(0) < o.microbatches) {
        list.forward(0);
        list.input(0);
        if (list.inputs(0) > rank) list.weight(0);
      }
      while (list.weight(0)) {
      }
    }
    lists.push_back(std::move(list).take());
  }
  return lists;
}

// Chunk 0 is on the way down the V, chunk 1 on the way back. The phases are the paper's. A rank
// begins with forwards of chunk 0, then does forwards of both chunks in turn, then forwards and
// backwards of chunk 1. In the steady phase, each round has F and I+W of both chunks. At the end,
// the remaining I come first and the remaining W last.
ComputeLists zero_bubble_v_lists(const ScheduleOptions& o) {
  ComputeLists lists;
  const int p = o.ranks;
  for (int rank = 0; rank < p; ++rank) {
    RankList list(o.microbatches, {rank, 2 * p - 1 - rank});
    for (int i = 0; i < 2 * (p - rank) - 1; ++i) list.forward(0);
    for (int i = 0; i < rank; ++i) {
      list.forward(1);
      list.forward(0);
    }
    if (o.forward_only) {
      for (bool more = true; more;) {
        more = list.forward(1);
        more = list.forward(0) || more;
      }
      lists.push_back(std::move(list).take());
      continue;
    }
    const auto backward = [&list](int chunk, bool with_weight) {
      const bool done = list.input(chunk);
      if (done && with_weight) list.weight(chunk);
      return done;
    };
    for (int i = 0; i < p - rank; ++i) {
      list.forward(1);
      backward(1, true);
    }
    while (list.forwards(0) < o.microbatches || list.forwards(1) < list.forwards(0)) {
      list.forward(0);
      backward(0, true);
      list.forward(1);
      backward(1, true);
    }
    for (int i = 0; i < rank; ++i) {
      backward(0, false);
      backward(1, false);
    }
    for (bool more = true; more;) {
      more = list.input(0);
      more = list.input(1) || more;
      list.weight(0);
    }
    while (list.weight(1) || list.weight(0)) {
    }
    lists.push_back(std::move(list).take());
  }
  return lists;
}

}  // namespace shoal::parallel
