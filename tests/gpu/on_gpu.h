// Runs ranks as processes on device 0, or in turn on the first SHOAL_TEST_GPUS devices. Only the
// ranks use CUDA, because a process that has used it cannot fork.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "support/ranks.h"
#include <gtest/gtest.h>

#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/device.h"

// Skips a test whose ranks are on several hosts. Use it at the top of the test.
#define SHOAL_NEEDS_A_NETWORK()                                 \
  if (::shoal::collectives::fabric::fabric_providers().empty()) \
  GTEST_SKIP() << "built without libfabric"

namespace shoal::test {

inline Device device_of(const World& world) {
  const char* devices = std::getenv("SHOAL_TEST_GPUS");
  return Device::cuda(devices ? world.rank % std::stoi(devices) : 0);
}

// Returns why device 0 cannot be used, or an empty string if it can.
inline std::string why_no_gpu() {
  ProcessRanks probe(1, [](const World&, Store&) {
    device_backend(DeviceType::cuda).check_available(Device::cuda(0));
  });
  const RankOutcome outcome = probe.wait(60).front();
  return outcome.exit_status == 0 ? "" : "no GPU: " + outcome.error;
}

// Returns how each rank ended, or nothing without a GPU.
inline std::vector<RankOutcome> on_gpu(int ranks, double seconds, const RankBody& body) {
  if (!why_no_gpu().empty()) return {};
  ProcessRanks processes(ranks, body);
  return processes.wait(seconds);
}

// Expects every rank to succeed. Skips the test without a GPU.
inline void expect_on_gpu(int ranks, double seconds, const RankBody& body) {
  if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  ProcessRanks processes(ranks, body);
  const auto outcomes = processes.wait(seconds);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_FALSE(outcomes[rank].running) << "rank " << rank << " did not end";
    EXPECT_EQ(outcomes[rank].exit_status, 0) << "rank " << rank << ": " << outcomes[rank].error
                                             << " (signal " << outcomes[rank].signal << ")";
  }
}

}  // namespace shoal::test
