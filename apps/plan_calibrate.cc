// shoal plan calibrate: measures this host as a machine for predictions.
#include "plan_calibrate.h"

#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/communicator_options.h"
#include "shoal/parallel/calibrate/calibrate.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/free_memory.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/rendezvous/threads.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/run/compute.h"

namespace shoal::app {
namespace {

struct Words {
  std::string out;
  std::vector<std::string> dtypes = {"f32"};
};

int calibrate(const Words& words) {
  const auto start = Clock::now();
  const Deadline deadline = deadlines::start();
  World world = discover_world();
  const auto store = make_store(world, deadline);
  if (world.size > 1) settle_nodes(world, *store, deadline);
  SHOAL_CHECK(world.nodes == 1, "calibrate measures one host; its ranks are on {}", world.nodes);
  const int threads = threads_of_rank(world, *store, deadline);
  Compute compute(Device::cpu(), threads, std::nullopt);
  const auto communicator = collectives::make_communicator(
      world, *store, {.stream = compute.kernels->stream(), .counted_by = &compute.memory});
  std::vector<DType> dtypes;
  for (const std::string& dtype : words.dtypes) dtypes.push_back(parse_dtype(dtype));
  const bool prints = world.rank == 0;
  const FreeMemory memory = free_memory();
  const nlohmann::ordered_json file = parallel::calibrate(
      {.ranks = *communicator,
       .kernels = *compute.kernels,
       .memory = compute.memory,
       .dtypes = dtypes,
       .memory_bytes = static_cast<double>(memory.total) / world.size,
       .name = words.out,
       .description = fmt::format("{} with {} ranks of {} threads, measured by shoal plan "
                                  "calibrate: {}",
                                  world.host, world.size, threads, compute.kernels->describe()),
       .progress = [&](std::string_view what) {
         if (prints) terminal::print(stderr, "{:5.1f} s: {}\n", seconds_since(start), what);
       }});
  if (prints) {
    write_file_atomically(words.out, file.dump(1) + "\n");
    terminal::print("{}: this host with {} ranks, in {:.0f} s\n", words.out, world.size,
                    seconds_since(start));
  }
  communicator->barrier()->wait();
  return 0;
}

}  // namespace

void add_plan_calibrate(CLI::App& plan, Action& action) {
  CLI::App* const command = plan.add_subcommand(
      "calibrate", "Measure this host's processors as a machine; start it as a run: mpirun -n 2");
  const auto words = std::make_shared<Words>();
  command->add_option("--out", words->out, "the machine's file to write, NAME.json")->required();
  command->add_option("--dtype", words->dtypes, "f32, bf16: of products; the first of a step");
  command->callback([&action, words] { action = [words] { return calibrate(*words); }; });
}

}  // namespace shoal::app
