// The order of a pipeline as data (decision 9): each rank's list of actions.
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

// Rank of each stage, if each of `ranks` ranks has `chunks` stages. Loop: stage s is on rank s mod
// ranks (Megatron's virtual stages). V: two chunks, down and back up, so that rank 0 has the first
// and the last stage (ZB-V).
std::vector<int> loop_placement(int ranks, int chunks);
std::vector<int> v_placement(int ranks);

// The stage and rank at the other end of a send or receive of `schedule`. Stage -1: none (the first
// stage receives no input).
struct PeerStage {
  int stage = -1, rank = -1;
};
PeerStage peer_of(const Schedule& schedule, const Action& action);

// True if the next stage is on another rank, so that microbatches are sent.
bool crosses_forward(const Schedule& schedule, int stage);  // stage -> stage + 1

// Adds the needed sends and receives to the compute actions, in an order that cannot deadlock.
// Existing sends and receives of `schedule` are replaced. A send follows the action that computes
// its data. A receive stands `ahead` compute actions before the action that uses its data, so that
// data arrives while the rank computes. Receives keep the order of the peer's sends: a message that
// was sent earlier is received first, even if it is used later.
Schedule with_communication(const Schedule& schedule, int ahead = 1);

}  // namespace shoal::parallel
