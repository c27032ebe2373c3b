#include "shoal/collectives/backend/hierarchical/node_task.h"

#include <algorithm>

#include <fmt/format.h>

#include "shoal/collectives/backend/node_face.h"
#include "shoal/collectives/backend_communicator.h"
#include "shoal/runtime/base/deadlines.h"

namespace shoal::collectives::hierarchical {

algorithm::Slices cut(std::int64_t count, std::int64_t element, std::int64_t slice,
                      std::int64_t wanted, std::int64_t largest) {
  const std::int64_t bytes =
      slice > 0 ? slice : std::clamp<std::int64_t>(count * element / wanted, 1 << 20, largest);
  return {count, std::max<std::int64_t>(1, bytes / element)};
}

NodeTask::NodeTask(std::shared_ptr<Levels> levels, Call call)
    : levels_(std::move(levels)), call_(std::move(call)), ticket_(levels_->next_ticket++) {}

std::string NodeTask::name() const { return fmt::format("{} (#{})", describe(call_), number); }

bool NodeTask::advance(bool background) {
  bool moved = advance_rail();
  moved = advance_node(Lane::reduce) || moved;
  moved = advance_node(Lane::gather) || moved;
  if (states_[0].over && states_[1].over && rail_over()) {
    // In this order, so that a reader of both never sees an operation without its thread.
    if (background) levels_->by_progress_thread.fetch_add(1);
    levels_->completed.fetch_add(1);
    set_done();
  }
  return moved;
}

// Waits, because the node's progress thread could otherwise work on buffers that their owner has
// freed after it learned of the failure.
void NodeTask::cancel(std::string_view reason) {
  for (const auto& node : levels_->nodes) node->abort(reason);
  for (const State& state : states_) {
    if (!state.work) continue;
    try {
      state.work->wait(deadlines::at_once());
    } catch (const Error&) {  // aborted, as expected
      continue;
    }
  }
}

bool NodeTask::doze(int milliseconds) {
  // A thread that slept on one lane's doorbell would miss the other's.
  if (static_cast<bool>(states_[0].work) == static_cast<bool>(states_[1].work)) return false;
  auto* work = dynamic_cast<NodeWork*>((states_[0].work ? states_[0] : states_[1]).work.get());
  if (!work) return false;
  work->doze(milliseconds);
  return true;
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
      state.work = start_for_caller(lane, state.step);
      if (!state.work) ended(lane, state.step++);
      moved = true;
    }
  } catch (const Error& error) {
    throw as_called(error);
  }
}

// The ranks of the host compare the user's call, and errors name it.
WorkPtr NodeTask::start_for_caller(Lane lane, int step) {
  BackendCommunicator& node = backend_of(this->node(lane));
  node.on_behalf_of(outer());
  struct Reset {
    BackendCommunicator& node;
    ~Reset() { node.on_behalf_of({}); }
  } const reset{node};
  return start(lane, step);
}

Error NodeTask::as_called(const Error& error) const {
  Error outer(error);
  outer.at_rank(levels_->member).in_operation(name());
  return outer;
}

std::string NodeTask::missing(std::vector<int>& peers) const {
  for (const State& state : states_) {
    if (!state.work) continue;
    try {
      state.work->wait(deadlines::at_once());
    } catch (const Error& error) {
      const Error outer = as_called(error);
      if (outer.peer() >= 0) peers.push_back(outer.peer());
      return fmt::format("within the host: {}", outer.message());
    }
    return "its own next step";
  }
  if (const net::NetOperation* rail = awaited())
    return fmt::format("on the rail of local rank {}: {}", levels_->local_rank(),
                       rail->missing(peers));
  for (std::size_t lane = 0; lane < states_.size(); ++lane)
    if (!states_[lane].over && levels_->turns[lane] == ticket_) return "its own next step";
  return "an operation before it";
}

}  // namespace shoal::collectives::hierarchical
