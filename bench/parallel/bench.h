// Measurements of this program, which runs one process per rank.
#pragma once

#include <string>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::bench {

struct ParallelArguments {
  std::int64_t channels = 384, layers = 7, heads = 8, vocabulary = 4096, length = 128, rows = 16;
  int microbatches = 8;
  int rounds = 5, warmup = 1;
  std::vector<std::string> only;  // cell names or parts of them; empty: all
  bool list = false;              // only print the names
  bool memory = false, operations = false, bubbles = false, json = false;
  double forward_ms = 10;
};

// Empty `only`: selects all names. Otherwise each entry selects the name that equals it or, without
// such a name, all names that contain it. Throws if an entry selects none.
std::vector<bool> chosen(const std::vector<std::string>& only,
                         const std::vector<std::string>& names);

// Times steps of one GPT-2 in every layout, by turns: seconds, and throughput relative to data
// parallelism.
void measure_layouts(const ParallelArguments& arguments, collectives::Communicator& world);

// Runs one step per layout and compares each rank's memory by tag with the formulas. `memory`
// counts the ranks' own memory and the shared memory of `world` and its groups.
void measure_memory(const ParallelArguments& arguments, collectives::Communicator& world,
                    CountingMemory& memory);

// Measures the cost and the savings of checkpointing and offloading.
void measure_operations(const ParallelArguments& arguments, collectives::Communicator& world);

// Runs pipelines whose stages sleep (I and W as long as F), and compares them with the simulator.
void measure_bubbles(const ParallelArguments& arguments, collectives::Communicator& world);

}  // namespace shoal::bench
