// Measuring this host: the resulting machine file can be read, and its predictions
// match the measurement.
#include "shoal/parallel/calibrate/calibrate.h"

#include <mutex>
#include <vector>

#include "support/ranks.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/communicator_options.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/parallel/predict/predict.h"

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

TEST(Calibrate, PredictsTheStepThatItMeasured) {
  const nlohmann::json file = calibrated(1)[0];
  const Machine machine = read_machine(file, "here");
  EXPECT_EQ(machine.devices, 1);
  const nlohmann::json& traced = file["traced"];
  const auto model = nn::make_causal_lm(traced["config"], "the traced model");
  const ModelShape shape = model_shape(*model);
  const ParallelPlan plan;
  const Prediction p = predict({.model = shape,
                                .machine = machine,
                                .plan = plan,
                                .run = {.batch = traced["rows"], .length = traced["length"]}});
  const nlohmann::json& seconds = traced["seconds"];
  double all = 0;
  for (const auto& [name, part] : seconds.items()) all += part.get<double>();
  EXPECT_NEAR(p.seconds / all, 1, 0.03);
  EXPECT_NEAR(p.parts.attention / seconds["attention"].get<double>(), 1, 1e-6);
  EXPECT_NEAR(p.parts.optimizer / seconds["optimizer"].get<double>(), 1, 1e-6);
}

TEST(Calibrate, RanksMeasureTogether) {
  const std::vector<nlohmann::json> files = calibrated(2);
  EXPECT_EQ(files[0], files[1]);
  const Machine machine = read_machine(files[0], "here");
  EXPECT_EQ(machine.devices, 2);
  const TimeTable& table = machine.node.all_reduce.at(2);
  EXPECT_GT(table.points.size(), 5U);
  EXPECT_GT(table.at(1 << 24), table.at(1 << 12));
  EXPECT_GT(machine.node.bandwidth, 1e6);
}

}  // namespace
}  // namespace shoal::parallel
