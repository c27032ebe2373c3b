#include "shoal/collectives/backend/hierarchical/node_task.h"

#include <fmt/ranges.h>

namespace shoal::collectives {

NodeTask::NodeTask(std::shared_ptr<Levels> levels, Call call)
    : levels_(std::move(levels)), call_(std::move(call)), ticket_(levels_->next_ticket++) {}

std::string NodeTask::name() const { return fmt::format("{} (#{})", describe(call_), ticket_ + 1); }

bool NodeTask::advance(bool background) {
  bool moved = advance_rail();
  moved = advance_node(Lane::reduce) || moved;
  moved = advance_node(Lane::gather) || moved;
  if (states_[0].over && states_[1].over && rail_over()) {
    levels_->completed.fetch_add(1);
    if (background) levels_->by_progress_thread.fetch_add(1);
    set_done();
  }
  return moved;
}

// Without the wait the node's progress thread could take a step on buffers whose owner has been
// told of the failure, and has freed them.
void NodeTask::cancel(std::string_view reason) {
  for (const auto& node : levels_->nodes) node->abort(reason);
  for (const State& state : states_) {
    if (!state.work) continue;
    try {
      state.work->wait(Deadline::in_seconds(0));
    } catch (const Error&) {  // aborted: as it should be
      continue;
    }
  }
}

bool NodeTask::advance_node(Lane lane) {
  State& state = states_[static_cast<std::size_t>(lane)];
  std::uint64_t& turn = levels_->turns[static_cast<std::size_t>(lane)];
  bool moved = false;
  try {
    for (;;) {
      if (state.work) {
        if (!state.work->test()) return moved;
        state.work.reset();
        ended(lane, state.step++);
        moved = true;
      }
      if (turn != ticket_) return moved;
      if (state.step == node_steps(lane)) {
        state.over = true;
        ++turn;
        return true;
      }
      if (!may_start(lane, state.step)) return moved;
      state.work = start(lane, state.step);
      if (!state.work) ended(lane, state.step++);
      moved = true;
    }
  } catch (const Error& error) {
    throw in_world(error);
  }
}

// The node's Communicator knows local ranks only.
Error NodeTask::in_world(const Error& error) const {
  const auto& members = levels_->placement.members(levels_->node_number());
  Error outer(error.code(),
              fmt::format("within the host, whose ranks {} are its local ranks in order: {}",
                          fmt::join(members, ", "), error.message()),
              error.remedy());
  outer.at_rank(levels_->rank).in_operation(name());
  if (error.peer() >= 0 && error.peer() < static_cast<int>(members.size()))
    outer.with_peer(members[static_cast<std::size_t>(error.peer())]);
  return outer;
}

std::string NodeTask::missing(std::vector<int>& peers) const {
  for (const State& state : states_) {
    if (!state.work) continue;
    try {
      state.work->wait(Deadline::in_seconds(0));
    } catch (const Error& error) {
      const Error outer = in_world(error);
      if (outer.peer() >= 0) peers.push_back(outer.peer());
      return outer.message();
    }
    return "its own next step";
  }
  if (const NetOperation* rail = awaited())
    return fmt::format("on the rail of local rank {}: {}", levels_->local_rank(),
                       rail->missing(peers));
  for (std::size_t lane = 0; lane < states_.size(); ++lane)
    if (!states_[lane].over && levels_->turns[lane] == ticket_) return "its own next step";
  return "an operation before it";
}

}  // namespace shoal::collectives
