// Plays a schedule's lists against each other: which action may run next, and what a rank waits
// for. Shared by the validator and the simulator; not for other rooms.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shoal/parallel/pipeline/schedule.h"

namespace shoal::parallel {

class Player {
 public:
  explicit Player(const Schedule& schedule);

  // Runs every rank as far as it gets. For each action, in an order in which they may run:
  // visit(rank, index). True when all lists were played to their ends.
  bool play(const std::function<void(int rank, std::size_t index)>& visit);

  // After a play that did not end: where each rank stands, and what it waits for.
  std::size_t position(int rank) const { return next_[static_cast<std::size_t>(rank)]; }
  std::string waits_for(int rank) const;

  // What the action needs from elsewhere: a message (the send that it waits for) or an action of
  // the same rank. A stage of -1 means nothing.
  struct Need {
    Action action{ActionKind::forward, -1, -1};
    bool message = false;
  };
  Need need_of(const Action& action) const;

 private:
  bool ready(const Action& action) const;
  const Schedule& schedule_;
  std::vector<std::size_t> next_;
  std::map<std::pair<int, int>, unsigned> done_;  // by (stage, microbatch): bits of ActionKind
};

}  // namespace shoal::parallel
