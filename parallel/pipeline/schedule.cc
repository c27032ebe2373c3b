#include "shoal/parallel/pipeline/schedule.h"

#include <algorithm>
#include <map>
#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {

std::vector<int> loop_placement(int ranks, int chunks) {
  std::vector<int> rank_of_stage;
  for (int stage = 0; stage < ranks * chunks; ++stage) rank_of_stage.push_back(stage % ranks);
  return rank_of_stage;
}

std::vector<int> v_placement(int ranks) {
  std::vector<int> rank_of_stage;
  for (int rank = 0; rank < ranks; ++rank) rank_of_stage.push_back(rank);
  for (int rank = ranks - 1; rank >= 0; --rank) rank_of_stage.push_back(rank);
  return rank_of_stage;
}

PeerStage peer_of(const Schedule& schedule, const Action& action) {
  const bool next =
      action.kind == ActionKind::send_forward || action.kind == ActionKind::recv_backward;
  const int stage = action.stage + (next ? 1 : -1);
  if (stage < 0 || stage >= schedule.stages()) return {};
  return {stage, schedule.rank_of_stage[static_cast<std::size_t>(stage)]};
}

bool crosses_forward(const Schedule& schedule, int stage) {
  const auto at = static_cast<std::size_t>(stage);
  return stage >= 0 && stage + 1 < schedule.stages() &&
         schedule.rank_of_stage[at] != schedule.rank_of_stage[at + 1];
}

namespace {

// Sets `receive` to the receive of the message that compute action `use` waits for. False: there is
// none.
bool message_before(const Schedule& schedule, const Action& use, Action& receive) {
  const bool forward = use.kind == ActionKind::forward;
  if (use.kind == ActionKind::weight_backward) return false;
  if (!crosses_forward(schedule, forward ? use.stage - 1 : use.stage)) return false;
  receive = {forward ? ActionKind::recv_forward : ActionKind::recv_backward, use.stage,
             use.microbatch};
  return true;
}

// Sets `send` to the send that follows compute action `done`. False: there is none.
bool message_after(const Schedule& schedule, const Action& done, Action& send) {
  const bool forward = done.kind == ActionKind::forward;
  if (done.kind == ActionKind::weight_backward) return false;
  if (!crosses_forward(schedule, forward ? done.stage : done.stage - 1)) return false;
  send = {forward ? ActionKind::send_forward : ActionKind::send_backward, done.stage,
          done.microbatch};
  return true;
}

// The receive that matches a send.
Action met_by(const Schedule& schedule, const Action& send) {
  return {
      send.kind == ActionKind::send_forward ? ActionKind::recv_forward : ActionKind::recv_backward,
      peer_of(schedule, send).stage, send.microbatch};
}

// The messages between each two ranks, in order, as the matching receives.
using Messages = std::map<std::pair<int, int>, std::vector<Action>>;  // (from, to)

Messages messages_of(const Schedule& schedule, const std::vector<std::vector<Action>>& compute) {
  Messages messages;
  for (int rank = 0; rank < schedule.ranks(); ++rank)
    for (const Action& action : compute[static_cast<std::size_t>(rank)]) {
      Action send;
      if (message_after(schedule, action, send))
        messages[{rank, peer_of(schedule, send).rank}].push_back(met_by(schedule, send));
    }
  return messages;
}

}  // namespace

Schedule with_communication(const Schedule& schedule, int ahead) {
  std::vector<std::vector<Action>> compute;
  for (const auto& all : schedule.actions) {
    auto& kept = compute.emplace_back();
    for (const Action& action : all)
      if (!sends(action.kind) && !receives(action.kind)) kept.push_back(action);
  }
  Messages messages = messages_of(schedule, compute);
  Schedule out = schedule;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& mine = compute[static_cast<std::size_t>(rank)];
    std::map<int, std::size_t> taken;  // by peer: receives placed so far
    // placed[i]: receives that come before mine[i].
    std::vector<std::vector<Action>> placed(mine.size());
    for (std::size_t i = 0; i < mine.size(); ++i) {
      Action receive;
      if (!computes(mine[i].kind) || !message_before(schedule, mine[i], receive)) continue;
      const int peer = peer_of(schedule, receive).rank;
      const auto& wire = messages[{peer, rank}];
      // Most often it is the next one.
      const auto next = wire.begin() + static_cast<std::ptrdiff_t>(taken[peer]);
      auto found = std::find(next, wire.end(), receive);
      if (found == wire.end() && std::find(wire.begin(), next, receive) != next) continue;
      // A receive without a sender is placed alone; the validator reports it.
      const std::size_t until =
          found == wire.end() ? taken[peer] : static_cast<std::size_t>(found - wire.begin()) + 1;
      const std::size_t at = i - std::min(i, static_cast<std::size_t>(ahead));
      for (std::size_t k = taken[peer]; k < until; ++k) placed[at].push_back(wire[k]);
      if (found == wire.end()) placed[at].push_back(receive);
      taken[peer] = std::max(taken[peer], until);
    }
    auto& list = out.actions[static_cast<std::size_t>(rank)];
    list.clear();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      list.insert(list.end(), placed[i].begin(), placed[i].end());
      list.push_back(mine[i]);
      Action send;
      if (computes(mine[i].kind) && message_after(schedule, mine[i], send)) list.push_back(send);
    }
  }
  return out;
}

}  // namespace shoal::parallel
