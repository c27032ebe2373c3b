// shoal-collective-perf: the equivalent of nccl-tests' *_perf programs. Exit status 1 if a result
// is wrong.
#include <csignal>
#include <cstdio>

#include "measure.h"
#include "options.h"
#include "print.h"
#include <CLI/CLI.hpp>

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/own_signals.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::perf {
namespace {

std::vector<std::int64_t> sizes_of(const Options& options) {
  if (!options.sizes.empty()) return options.sizes;
  if (options.operation == collectives::Operation::barrier) return {0};
  std::vector<std::int64_t> sizes;
  for (std::int64_t bytes = options.min_bytes; bytes <= options.max_bytes;) {
    sizes.push_back(bytes);
    const double grown = static_cast<double>(bytes) * options.factor;
    const auto next = options.step_bytes > 0 ? bytes + options.step_bytes
                      : grown <= static_cast<double>(options.max_bytes)
                          ? static_cast<std::int64_t>(grown)
                          : options.max_bytes + 1;
    bytes = std::max(next, bytes + 1);
  }
  return sizes;
}

int run(const Options& options) {
  const Deadline deadline = Deadline::in_seconds(options.communicator.deadline_seconds);
  World world = discover_world();
  log::set_rank(world.rank, world.size);
  const auto store = make_store(world, deadline);
  if (world.size > 1) settle_nodes(world, *store, deadline);
  SHOAL_CHECK(options.root >= 0 && options.root < world.size, "-r {} in a group of {}",
              options.root, world.size);
  const auto communicator = make_communicator(world, *store, options.communicator);
  const bool prints = communicator->rank() == 0;
  const double bound =  // seconds per byte
      options.goodput > 0 ? host_factor(options.operation, world.nodes) / options.goodput : 0;
  if (prints) print_header(options, *communicator, bound);
  std::int64_t wrong = 0;
  double busbw = 0;
  int timings = 0;
  {
    Bench bench(options, *communicator);
    for (const std::int64_t bytes : sizes_of(options)) {
      const Result result = bench.run(bytes);
      if (prints) print_row(options, *communicator, result, bound);
      for (const auto& timing : {result.out_of_place, result.in_place}) {
        if (!timing) continue;
        wrong += std::max<std::int64_t>(timing->wrong, 0);
        ++timings;
        if (timing->mean > 0)
          busbw += static_cast<double>(result.bytes) / timing->mean * 1e-9 *
                   bus_factor(options.operation, communicator->size());
      }
    }
    // No rank may free memory that other ranks still map.
    communicator->barrier(Stream{communicator->memory_resource().device(), nullptr})->wait();
  }
  if (prints) print_summary(options, timings > 0 ? busbw / timings : 0, wrong);
  if (world.size > 1)
    barrier(*store, "shoal-collective-perf/end", world.size,
            Deadline::in_seconds(options.communicator.deadline_seconds));
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace shoal::perf

int main(int argc, char** argv) {
  shoal::take_back_signals();
  std::signal(SIGPIPE, SIG_IGN);
  try {
    const auto options = shoal::perf::parse(argc, argv);
    const int status = options ? shoal::perf::run(*options) : 0;
    if (status == 0) shoal::terminal::finish_output();
    return status;
  } catch (const CLI::ParseError& problem) {
    shoal::terminal::print(stderr, "shoal-collective-perf: {}\n", problem.what());
    return 2;
  } catch (const std::exception& problem) {
    shoal::terminal::print(stderr, "shoal-collective-perf: {}\n", problem.what());
    return 1;
  }
}
