// Short calls that many tests of communicators make. Needs shoal_collectives.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"

namespace shoal::test {

inline collectives::CommunicatorOptions with_deadline(double seconds) {
  collectives::CommunicatorOptions options;
  options.deadline_seconds = seconds;
  return options;
}

inline void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// Runs all_reduce on `count` values in place and waits for it.
inline void sum(collectives::Communicator& communicator, float* values, std::int64_t count) {
  communicator.all_reduce(values, values, count, DType::f32, collectives::ReduceOp::sum)->wait();
}
inline void sum(collectives::Communicator& communicator, std::vector<float>& values) {
  sum(communicator, values.data(), static_cast<std::int64_t>(values.size()));
}

}  // namespace shoal::test
