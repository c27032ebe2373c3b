// ./dev bench parallel: layouts of a training step relative to data parallelism, and pipeline
// bubbles.
#include <cstdio>
#include <exception>

#include "bench.h"
#include <CLI/CLI.hpp>

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/rendezvous/world.h"

int main(int argc, char** argv) {
  shoal::restart_with_short_spins(argv);
  shoal::bench::ParallelArguments arguments;
  CLI::App app("Steps of a GPT-2 on all ranks of mpirun, under each layout, turn by turn.");
  app.add_option("--channels", arguments.channels, "n_embd");
  app.add_option("--layers", arguments.layers, "n_layer");
  app.add_option("--heads", arguments.heads, "n_head");
  app.add_option("--vocabulary", arguments.vocabulary);
  app.add_option("--length", arguments.length, "positions of a sample");
  app.add_option("--rows", arguments.rows, "samples of the global batch");
  app.add_option("--microbatches", arguments.microbatches, "of each pipeline");
  app.add_option("--rounds", arguments.rounds)->check(CLI::PositiveNumber);
  app.add_option("--warmup", arguments.warmup);
  app.add_option("--only", arguments.only,
                 "cells by name, or by a part of it; several with commas (a baseline is added)")
      ->delimiter(',');
  app.add_flag("--list", arguments.list, "print the names of the cells and end");
  auto* const kinds = app.add_option_group("kinds", "what is measured; none: a step's time");
  kinds->require_option(0, 1);
  kinds->add_flag("--memory", arguments.memory,
                  "bytes a rank by tag in one step of each layout, beside the formulas");
  kinds->add_flag("--operations", arguments.operations,
                  "time of checkpointing and of offloading, beside what they save");
  kinds->add_flag("--bubbles", arguments.bubbles,
                  "pipelines whose stages sleep, beside the simulator");
  app.add_option("--forward-ms", arguments.forward_ms, "with --bubbles: sleep of a forward");
  app.add_flag("--json", arguments.json, "one JSON line a row");
  CLI11_PARSE(app, argc, argv);
  try {
    shoal::World world = shoal::discover_world();
    const auto store = shoal::make_store(world, shoal::deadlines::start());
    const auto host = shoal::make_host_memory();
    shoal::CountingMemory memory(*host);
    shoal::collectives::CommunicatorOptions options;
    options.counted_by = &memory;
    const auto communicator = shoal::collectives::make_communicator(world, *store, options);
    if (arguments.bubbles)
      shoal::bench::measure_bubbles(arguments, *communicator);
    else if (arguments.memory)
      shoal::bench::measure_memory(arguments, *communicator, memory);
    else if (arguments.operations)
      shoal::bench::measure_operations(arguments, *communicator);
    else
      shoal::bench::measure_layouts(arguments, *communicator);
    communicator->barrier()->wait();
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "shoal_bench_parallel: %s\n", problem.what());
    return 1;
  }
  return 0;
}
