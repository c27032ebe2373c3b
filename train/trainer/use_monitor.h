// What the ranks' processes and hosts use, for the records of metrics.jsonl.
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/collectives/communicator.h"
#include "shoal/runtime/base/process_use.h"

namespace shoal {

// One for each rank. Not thread-safe.
class UseMonitor {
 public:
  static constexpr int kMostRanks = 64;

  explicit UseMonitor(int most_ranks = kMostRanks) : most_ranks_(most_ranks) {}
  // Ends a window of measurement. `elapsed`: seconds since training began. Collective: every rank
  // calls it with the same host communicator, which may be of one rank. Blocks.
  void look(collectives::Communicator& host, double elapsed);
  // Adds values of the last window. N is a rank; of more than most_ranks, every second one, every
  // third one, ... is recorded.
  //   processor_cores_rankN     processor cores that the process kept busy
  //   resident_bytes_rankN      its memory in RAM at the end of the window
  //   network_rate_rankN        bytes per second that its host received and sent
  void add_to(nlohmann::ordered_json& record) const;

 private:
  int most_ranks_;
  ProcessUse before_ = process_use();
  double elapsed_ = 0;
  std::vector<double> of_ranks_;  // three values of each rank
};

}  // namespace shoal
