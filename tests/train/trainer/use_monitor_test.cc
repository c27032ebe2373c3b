#include "shoal/train/trainer/use_monitor.h"

#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/communicator_options.h"

namespace shoal {
namespace {

std::vector<std::string> names_of(const nlohmann::ordered_json& record) {
  std::vector<std::string> names;
  for (const auto& [name, value] : record.items()) names.push_back(name);
  return names;
}

// Of five ranks, with two at most, every third is recorded.
TEST(UseMonitor, RecordsRanksThatAreEvenlyApart) {
  test::run_thread_ranks(5, [](const World& world, Store& store) {
    const auto communicator = collectives::make_communicator(world, store, {});
    UseMonitor monitor(2);
    monitor.look(communicator->host(), 0.5);
    nlohmann::ordered_json record;
    monitor.add_to(record);
    EXPECT_THAT(names_of(record),
                ::testing::ElementsAre("processor_cores_rank0", "processor_cores_rank3",
                                       "resident_bytes_rank0", "resident_bytes_rank3",
                                       "network_rate_rank0", "network_rate_rank3"));
    EXPECT_GT(record["resident_bytes_rank3"].get<double>(), 1 << 20);
  });
}

TEST(UseMonitor, CountsTheProcessorOfTheWindow) {
  const auto store = make_hash_store();
  const auto communicator = collectives::make_communicator({}, *store, {});
  UseMonitor monitor;
  const double began = process_use().processor_seconds;
  while (process_use().processor_seconds < began + 0.1) {
  }
  nlohmann::ordered_json record;
  monitor.look(communicator->host(), 0.05);  // 0.1 s of a processor in a window of 0.05 s
  monitor.add_to(record);
  EXPECT_GE(record["processor_cores_rank0"].get<double>(), 2);
  monitor.look(communicator->host(), 1000);
  monitor.add_to(record);
  EXPECT_LT(record["processor_cores_rank0"].get<double>(), 0.1);
}

}  // namespace
}  // namespace shoal
