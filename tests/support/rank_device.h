// Ranks whose kernels run on the tests' device (support/device.h), and their communicators.
#pragma once

#include <cstdlib>

#include "support/device.h"

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::testing {

// Makes the calling thread this rank on its device, and returns the options for buffers there.
// SHOAL_TEST_BACKEND in the environment overrides the backend in `options`.
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
