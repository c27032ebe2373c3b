#include "shoal/collectives/backend/hierarchical/node_task.h"

#include <fmt/ranges.h>

namespace shoal::collectives {

NodeTask::NodeTask(std::shared_ptr<Levels> levels, Call call)
    : levels_(std::move(levels)), call_(std::move(call)), ticket_(levels_->next_ticket++) {}

std::string NodeTask::name() const { return fmt::format("{} (#{})", describe(call_), ticket_ + 1); }

bool NodeTask::advance(bool background) {
  bool moved = advance_rail();
  moved = advance_node() || moved;
  if (step_ == node_steps() && !node_work_ && rail_over()) {
    levels_->completed.fetch_add(1);
    if (background) levels_->by_progress_thread.fetch_add(1);
    set_done();
  }
  return moved;
}

// Without the wait the node's progress thread could take a step on buffers whose owner has been
// told of the failure, and has freed them.
void NodeTask::cancel(std::string_view reason) {
  levels_->node->abort(reason);
  if (!node_work_) return;
  try {
    node_work_->wait(Deadline::in_seconds(0));
  } catch (const Error&) {  // aborted: as it should be
    return;
  }
}

bool NodeTask::advance_node() {
  bool moved = false;
  try {
    for (;;) {
      if (node_work_) {
        if (!node_work_->test()) return moved;
        node_work_.reset();
        ended(step_++);
        moved = true;
      }
      if (levels_->turn != ticket_) return moved;
      if (step_ == node_steps()) {
        ++levels_->turn;
        return true;
      }
      if (!may_start(step_)) return moved;
      node_work_ = start(step_);
      if (!node_work_) ended(step_++);
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
  if (node_work_) {
    try {
      node_work_->wait(Deadline::in_seconds(0));
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
  return levels_->turn == ticket_ ? "its own next step" : "an operation before it";
}

}  // namespace shoal::collectives
