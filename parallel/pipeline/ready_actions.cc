#include "shoal/parallel/pipeline/ready_actions.h"

#include <algorithm>

#include <fmt/format.h>

namespace shoal::parallel {
namespace {

constexpr std::uint16_t bit(ActionKind kind) {
  return static_cast<std::uint16_t>(1U << static_cast<unsigned>(kind));
}

}  // namespace

ReadyActions::ReadyActions(const Schedule& schedule)
    : schedule_(schedule), next_(static_cast<std::size_t>(schedule.ranks()), 0) {
  int stages = schedule.stages(), microbatches = schedule.microbatches;
  for (const auto& actions : schedule.actions)
    for (const Action& action : actions) {
      stages = std::max(stages, action.stage + 1);
      microbatches = std::max(microbatches, action.microbatch + 1);
    }
  microbatches_ = static_cast<std::size_t>(microbatches) + 1;
  done_.resize(static_cast<std::size_t>(stages) * microbatches_);
}

// If the neighbour stage is on another rank, the dependency is a message; otherwise it is that
// stage's action.
ReadyActions::Need ReadyActions::need_of(const Action& action) const {
  const int stage = action.stage;
  const int last = schedule_.stages() - 1;
  switch (action.kind) {
    case ActionKind::forward:
      if (stage == 0) return {};
      if (crosses_forward(schedule_, stage - 1))
        return {{ActionKind::send_forward, stage - 1, action.microbatch}, true};
      return {{ActionKind::forward, stage - 1, action.microbatch}, false};
    case ActionKind::backward:
    case ActionKind::input_backward:
      if (stage == last) return {{ActionKind::forward, stage, action.microbatch}, false};
      if (crosses_forward(schedule_, stage))
        return {{ActionKind::send_backward, stage + 1, action.microbatch}, true};
      return {{ActionKind::backward, stage + 1, action.microbatch}, false};
    case ActionKind::weight_backward:
      return {{ActionKind::input_backward, stage, action.microbatch}, false};
    case ActionKind::send_forward:
      return {{ActionKind::forward, stage, action.microbatch}, false};
    case ActionKind::send_backward:
      return {{ActionKind::backward, stage, action.microbatch}, false};
    default:
      return {};
  }
}

bool ReadyActions::ready(const Action& action) const {
  const Need need = need_of(action);
  if (need.action.stage < 0) return true;
  unsigned accepted = bit(need.action.kind);
  // Both kinds of backward give the input's gradient.
  if (need.action.kind == ActionKind::backward) accepted |= bit(ActionKind::input_backward);
  return (done_[place(need.action.stage, need.action.microbatch)] & accepted) != 0;
}

bool ReadyActions::play(const std::function<void(int, std::size_t)>& visit) {
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      const auto& actions = schedule_.actions[static_cast<std::size_t>(rank)];
      std::size_t& next = next_[static_cast<std::size_t>(rank)];
      for (; next < actions.size() && ready(actions[next]); ++next, moved = true) {
        const Action& action = actions[next];
        visit(rank, next);
        done_[place(action.stage, action.microbatch)] |= bit(action.kind);
      }
    }
  }
  for (int rank = 0; rank < schedule_.ranks(); ++rank)
    if (position(rank) < schedule_.actions[static_cast<std::size_t>(rank)].size()) return false;
  return true;
}

std::string ReadyActions::waits_for(int rank) const {
  const auto& actions = schedule_.actions[static_cast<std::size_t>(rank)];
  if (position(rank) >= actions.size()) return "is done";
  const Action& action = actions[position(rank)];
  const Need need = need_of(action);
  if (need.action.stage < 0) return fmt::format("stands before {}", to_string(action));
  return fmt::format("stands before {}, which waits for {} of rank {}", to_string(action),
                     to_string(need.action),
                     schedule_.rank_of_stage[static_cast<std::size_t>(need.action.stage)]);
}

}  // namespace shoal::parallel
