// The devices of all ranks of a job. Every rank knows all of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/run/compute.h"

namespace shoal {

struct RankDevice {
  std::string host;
  std::string why;  // reason for this device, from ChosenDevice
  Device device;
  // If `device` is a GPU: device_identity(), DeviceBackend's description, and the bytes that were
  // free when the run began.
  std::string identity, description;
  std::int64_t free = 0;
};

// Asks the driver to describe this rank's device. Call before memory is allocated.
RankDevice describe_device(const World& world, const ChosenDevice& chosen);

// Returns the devices in rank order. Collective. If some ranks have a GPU and others have none, all
// ranks throw unavailable, listing both groups.
std::vector<RankDevice> exchange_devices(const World& world, Store& store, const RankDevice& own,
                                         Deadline deadline);
// The same check for devices that were exchanged already.
void check_devices(std::span<const RankDevice> ranks);

// The ranks on the GPU of `rank`, itself included, in ascending order. On a CPU, only `rank`.
// Compares the GPUs' identities, since an index may differ from process to process.
std::vector<int> ranks_on_device_of(std::span<const RankDevice> ranks, int rank);

// Lines for the head of a log: the GPUs and their ranks. Empty for a single rank or CPUs.
std::vector<std::string> device_lines(std::span<const RankDevice> ranks);

}  // namespace shoal
