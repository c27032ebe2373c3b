// Measuring this host: the resulting machine file is complete and can be read.
#include "shoal/parallel/calibrate/calibrate.h"

#include <mutex>
#include <vector>

#include "support/ranks.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/communicator_options.h"
#include "shoal/parallel/predict/machine.h"

namespace shoal::parallel {
namespace {

// The machine file of each rank.
std::vector<nlohmann::json> calibrated(int ranks) {
  std::vector<nlohmann::json> files(static_cast<std::size_t>(ranks));
  test::run_thread_ranks(ranks, [&](const World& world, Store& store) {
    const auto memory = make_host_memory();
    const auto kernels = kernels::make_cpu_kernels({.threads = 1, .memory = memory.get()});
    const auto communicator = collectives::make_communicator(world, store, {});
    files[static_cast<std::size_t>(world.rank)] = calibrate({.ranks = *communicator,
                                                             .kernels = *kernels,
                                                             .memory = *memory,
                                                             .rows = {32, 1024},
                                                             .widths = {64, 512, 2048},
                                                             .memory_bytes = 1e9,
                                                             .name = "here"});
    communicator->barrier()->wait();
  });
  return files;
}

TEST(Calibrate, ARankThatIsAloneMeasuresComputingOnly) {
  const nlohmann::json file = calibrated(1)[0];
  const Machine machine = read_machine(file, "here");
  EXPECT_EQ(machine.devices, 1);
  EXPECT_FALSE(file.contains("node"));
  for (const auto& [part, seconds] : file["traced"]["seconds"].items())
    EXPECT_GT(seconds.get<double>(), part == "between" ? -1.0 : 0.0) << part;
  const nlohmann::json& measured = file["products"]["measured"]["f32"];
  for (const char* pass : {"forward", "input_gradient", "weight_gradient"})
    EXPECT_EQ(measured[pass].size(), 2U * 3U * 3U) << pass;  // rows, widths in, widths out
}

TEST(Calibrate, RanksMeasureTogether) {
  const std::vector<nlohmann::json> files = calibrated(2);
  EXPECT_EQ(files[0], files[1]);
  const Machine machine = read_machine(files[0], "here");
  EXPECT_EQ(machine.devices, 2);
  const TimeTable& table = machine.node.all_reduce.at(2);
  EXPECT_GT(table.points.size(), 5U);
  EXPECT_GE(table.at(1 << 24), table.at(1 << 12));
  EXPECT_GT(machine.node.bandwidth, 1e6);
}

}  // namespace
}  // namespace shoal::parallel
