// Ranks whose kernels run on the tests' device (support/device.h), and their Communicators.
#pragma once

#include <cstdlib>

#include "support/device.h"

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::testing {

// The calling thread is this rank: it takes its device, and the options are of buffers there.
// SHOAL_TEST_BACKEND in the environment names another backend than the options do.
inline collectives::CommunicatorOptions on_test_device(
    const World& world, collectives::CommunicatorOptions options = {}) {
  use_device_of(world.rank);
  options.stream = test_stream();
  if (const char* backend = std::getenv("SHOAL_TEST_BACKEND")) options.backend = backend;
  return options;
}

inline std::unique_ptr<collectives::Communicator> make_test_communicator(
    const World& world, Store& store, collectives::CommunicatorOptions options = {}) {
  return collectives::make_communicator(world, store, on_test_device(world, std::move(options)));
}

}  // namespace shoal::testing
