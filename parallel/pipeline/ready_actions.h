// Runs a schedule's lists against each other: finds which action may run next, and what a rank
// waits for. Used only by the validator and the simulator.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shoal/parallel/pipeline/schedule.h"

namespace shoal::parallel {

class ReadyActions {
 public:
  explicit ReadyActions(const Schedule& schedule);

  // Runs every rank as far as possible. Calls visit(rank, index) for each action, in an order in
  // which they may run. Returns true if all lists ran to their ends.
  bool play(const std::function<void(int rank, std::size_t index)>& visit);

  // After an incomplete play(): a rank's position in its list, and the action that it waits for.
  std::size_t position(int rank) const { return next_[static_cast<std::size_t>(rank)]; }
  std::string waits_for(int rank) const;

  // The dependency of an action: a message (the send that it waits for) or an action of the same
  // rank. Stage -1: no dependency.
  struct Need {
    Action action{ActionKind::forward, -1, -1};
    bool message = false;
  };
  Need need_of(const Action& action) const;

  // A number for each stage and microbatch of the schedule's actions, below places().
  std::size_t place(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage) * microbatches_ +
           static_cast<std::size_t>(microbatch + 1);
  }
  std::size_t places() const { return done_.size(); }

 private:
  bool ready(const Action& action) const;
  const Schedule& schedule_;
  std::vector<std::size_t> next_;
  std::size_t microbatches_ = 1;     // and one more, for actions without a microbatch
  std::vector<std::uint16_t> done_;  // by place(): bits of ActionKind
};

}  // namespace shoal::parallel
