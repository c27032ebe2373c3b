// What this program measures; one process a rank.
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
  std::vector<std::string> only;  // names of cells, or parts of them; empty: all
  bool list = false;              // the names, and nothing else
  bool memory = false, operations = false, bubbles = false, json = false;
  double forward_ms = 10;
};

// True where `only` is empty, has `name`, or no whole name of `names` but a part of it. Throws
// where it has what is no part of any.
std::vector<bool> chosen(const std::vector<std::string>& only,
                         const std::vector<std::string>& names);

// Steps of one GPT-2 under every layout of the ranks, turn by turn: seconds, and throughput beside
// that of data parallelism.
void measure_layouts(const ParallelArguments& arguments, collectives::Communicator& world);

// One step of each layout: what each rank holds by tag, beside what the formulas say. `memory`
// counts the ranks' own memory and what `world` and its groups share.
void measure_memory(const ParallelArguments& arguments, collectives::Communicator& world,
                    CountingMemory& memory);

// Checkpointing and offloading: what a step takes longer, beside what it saves.
void measure_operations(const ParallelArguments& arguments, collectives::Communicator& world);

// Pipelines whose stages sleep (I and W as long as F), beside what the simulator says.
void measure_bubbles(const ParallelArguments& arguments, collectives::Communicator& world);

}  // namespace shoal::bench
