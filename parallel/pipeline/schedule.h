// A pipeline's order as data (decision 9): which rank runs which actions, one after the other.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shoal/parallel/pipeline/action.h"

namespace shoal::parallel {

struct Schedule {
  std::string name;
  int microbatches = 0;
  std::vector<int> rank_of_stage;            // in the order of the model
  std::vector<std::vector<Action>> actions;  // by rank

  int ranks() const { return static_cast<int>(actions.size()); }
  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  bool operator==(const Schedule&) const = default;
};

// Where the stages of a pipeline of `ranks` lie when each rank has `chunks` of them. Loop: stage s
// on rank s mod ranks (Megatron's virtual stages). V: forwards and back, so that rank 0 has the
// first and the last (ZB-V); two chunks.
std::vector<int> loop_placement(int ranks, int chunks);
std::vector<int> v_placement(int ranks);

// The rank that stage `stage` of `schedule` exchanges with for an action that sends or receives,
// and the stage there. Stage -1: there is none (the first stage receives no input).
struct PeerStage {
  int stage = -1, rank = -1;
};
PeerStage peer_of(const Schedule& schedule, const Action& action);

// True when the stage's neighbour in that direction lies on another rank, so that its microbatches
// travel.
bool crosses_forward(const Schedule& schedule, int stage);  // stage -> stage + 1

// The compute actions with the sends and receives they need, in an order that cannot deadlock:
// a send follows what it sends; a receive stands before its use, earlier where the peer sends
// something else first (messages between two ranks arrive in the order in which they were sent),
// and `ahead` compute actions earlier still, so that data arrives while the rank computes.
// Sends and receives that `schedule` has are replaced.
Schedule with_communication(const Schedule& schedule, int ahead = 1);

// CSV: a line for each rank, a cell for each action, as PyTorch's schedules are written; an empty
// cell is idle time and is passed over. Before it, comments: "# name: 1f1b", "# stages: 0 1 2 3"
// (the rank of each stage) and "# microbatches: 8". Reading without comments (PyTorch's files), the
// rank of a stage is that of the line it stands in. Throws invalid_argument with line and cell.
std::string to_csv(const Schedule& schedule);
Schedule parse_csv(std::string_view text);

}  // namespace shoal::parallel
