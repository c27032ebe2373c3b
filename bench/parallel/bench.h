// What this program measures; one process a rank.
#pragma once

#include <string>
#include <vector>

#include "shoal/collectives/communicator.h"

namespace shoal::bench {

struct ParallelArguments {
  std::int64_t channels = 384, layers = 7, heads = 8, vocabulary = 4096, length = 128, rows = 16;
  int microbatches = 8;
  int rounds = 5, warmup = 1;
  bool bubbles = false, json = false;
  double forward_ms = 10;
};

// Steps of one GPT-2 under every layout of the ranks, turn by turn: seconds, and throughput beside
// that of data parallelism.
void measure_layouts(const ParallelArguments& arguments, collectives::Communicator& world);

// Pipelines whose stages sleep (I and W as long as F), beside what the simulator says.
void measure_bubbles(const ParallelArguments& arguments, collectives::Communicator& world);

}  // namespace shoal::bench
