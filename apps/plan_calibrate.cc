// shoal plan calibrate: measures this host as a machine for predictions.
#include "plan_calibrate.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/communicator_options.h"
#include "shoal/parallel/calibrate/calibrate.h"
#include "shoal/parallel/calibrate/fit.h"
#include "shoal/parallel/predict/machine.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/free_memory.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/rendezvous/threads.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/report/measures.h"
#include "shoal/train/report/run_log.h"
#include "shoal/train/run/compute.h"

namespace shoal::app {
namespace {

struct Words {
  std::string out;
  std::vector<std::string> dtypes = {"f32"};
  std::vector<std::int64_t> rows, widths;  // empty: as calibrate() has them
};

void check_sizes(const std::vector<std::int64_t>& sizes, const char* name) {
  const bool ascend = std::ranges::adjacent_find(sizes, std::greater_equal<>()) == sizes.end();
  SHOAL_CHECK(ascend && (sizes.empty() || sizes.front() > 0), "{} ascend from above 0; they are {}",
              name, fmt::join(sizes, ", "));
}

int calibrate(const Words& words) {
  check_sizes(words.rows, "rows"), check_sizes(words.widths, "widths");
  const auto directory = std::filesystem::path(words.out).parent_path();
  if (!directory.empty() && !is_directory(directory))
    throw Error(
        ErrorCode::not_found,
        fmt::format("--out is {}, and there is no directory {}", words.out, directory.string()),
        "make the directory");
  const auto start = Clock::now();
  const Deadline deadline = deadlines::start();
  World world = discover_world();
  const auto store = make_store(world, deadline);
  if (world.size > 1) settle_nodes(world, *store, deadline);
  SHOAL_CHECK(world.nodes == 1, "calibrate measures one host; its ranks are on {}", world.nodes);
  const int threads = threads_of_rank(world, *store, deadline);
  Compute compute(Device::cpu(), threads, std::nullopt);
  collectives::CommunicatorOptions how;
  how.stream = compute.kernels->stream();
  how.counted_by = &compute.memory;
  const auto communicator = collectives::make_communicator(world, *store, how);
  std::vector<DType> dtypes;
  for (const std::string& dtype : words.dtypes) dtypes.push_back(parse_dtype(dtype));
  const bool prints = world.rank == 0;
  const FreeMemory memory = free_memory();
  parallel::CalibrateRequest request{.ranks = *communicator,
                                     .kernels = *compute.kernels,
                                     .memory = compute.memory,
                                     .dtypes = dtypes,
                                     .memory_bytes = static_cast<double>(memory.total) / world.size,
                                     .name = std::filesystem::path(words.out).stem()};
  request.description =
      fmt::format("{} with {} ranks of {} threads, measured by shoal plan calibrate: {}",
                  world.host, world.size, threads, compute.kernels->describe());
  request.progress = [&](std::string_view what) {
    if (prints) terminal::print(stderr, "{:5.1f} s: {}\n", seconds_since(start), what);
  };
  if (!words.rows.empty()) request.rows = words.rows;
  if (!words.widths.empty()) request.widths = words.widths;
  const nlohmann::ordered_json file = parallel::calibrate(request);
  if (prints) {
    write_file_atomically(words.out, file.dump(1) + "\n");
    terminal::print("{}: this host with {} ranks, in {:.0f} s\n", words.out, world.size,
                    seconds_since(start));
  }
  communicator->barrier()->wait();
  return 0;
}

}  // namespace

int fit_plan_machine(const std::string& run, const std::string& machine, const std::string& out) {
  const report::RunLog log = report::read_run(run);
  const nlohmann::json* const predicted = find_field(log.settings, "predicted");
  SHOAL_CHECK(predicted != nullptr, "{} has no prediction: train with --machine {}", run, machine);
  const auto with = field_or(*predicted, "machine", std::string(), run);
  SHOAL_CHECK(std::filesystem::path(with).filename() == std::filesystem::path(machine).filename(),
              "{} was predicted with {}, not with {}", run, with, machine);
  SHOAL_CHECK(machine.ends_with(".json") && !out.empty(),
              "--fit needs the .json that was predicted with as --machine, and --save");
  const int devices = parallel::find_machine(machine).devices;
  const auto ranks = field_or<std::int64_t>(log.settings, "ranks", 1, run);
  SHOAL_CHECK(ranks <= devices,
              "{} had {} ranks and {} has {} devices: a run over a network says nothing of the "
              "links inside a host; fit one of a host",
              run, ranks, machine, devices);
  const nlohmann::ordered_json file = *ordered_json_if_valid(read_text_file(machine));
  write_file_atomically(
      out, parallel::fit_machine(file, *predicted, report::medians_of(log)).dump(1) + "\n");
  terminal::print("{}: {}, fitted to {}\n", out, machine, run);
  return 0;
}

void add_plan_calibrate(CLI::App& plan, Action& action) {
  CLI::App* const command = plan.add_subcommand(
      "calibrate", "Measure this host's processors as a machine; start it as a run: mpirun -n 2");
  const auto words = std::make_shared<Words>();
  command->add_option("--out", words->out, "the machine's file to write, NAME.json")->required();
  command->add_option("--dtype", words->dtypes, "f32, bf16: of products; the first of a step");
  command->add_option("--rows", words->rows, "positions of the products that are measured");
  command->add_option("--widths", words->widths, "widths of their inputs and outputs");
  command->callback([&action, words] { action = [words] { return calibrate(*words); }; });
}

}  // namespace shoal::app
