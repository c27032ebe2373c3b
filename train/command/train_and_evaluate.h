// Trains, evaluates and predicts on one rank, and writes the results of the run.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/trace/trace.h"
#include "shoal/train/command/auto_layout.h"
#include "shoal/train/command/setup.h"
#include "shoal/train/command/train.h"
#include "shoal/train/run/compute.h"
#include "shoal/train/run/devices.h"

namespace shoal::command {

// One rank of a run, ready to train.
struct RankParts {
  Task& task;
  const RunArguments& arguments;
  nlohmann::ordered_json recorded_options;  // option values for run_settings.json
  const Forecast& forecast;
  const RunSetup& setup;
  const World& world;
  collectives::Communicator& communicator;
  const collectives::CommunicatorOptions& made_with;
  Compute& compute;
  const ChosenDevice& device;
  const std::vector<RankDevice>& devices;  // by rank
  int threads;                             // of this rank
  Tracer* tracer;
  std::vector<std::string> notices;  // for rank 0 to print
  bool& training_began;              // set when training begins; status 2 is then impossible
  Guest* guest;                      // null: the program `shoal train`
};

// Every rank calls it. Returns the exit status: 0, or 128 + the number of the signal that stopped
// the run. Blocks.
int train_and_evaluate(const RankParts& rank);

}  // namespace shoal::command
