// The device of every rank of a job; all ranks know all of them.
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
  std::string why;  // ChosenDevice's
  Device device;
  // Of a GPU: device_identity(), DeviceBackend's words for it, and the bytes that nobody held when
  // the run began.
  std::string identity, description;
  std::int64_t free = 0;
};

// Of this rank. Asks the driver; before anything takes memory.
RankDevice describe_device(const World& world, const ChosenDevice& chosen);

// In rank order. Every rank calls it; where some have a GPU and others have none, all of them throw
// unavailable, with who has what.
std::vector<RankDevice> exchange_devices(const World& world, Store& store, const RankDevice& own,
                                         Deadline deadline);
// The same of what was exchanged.
void check_devices(std::span<const RankDevice> ranks);

// The ranks on the GPU of `rank`, it too, ascending; of a CPU it alone. By the GPU's identity: its
// index may differ from process to process.
std::vector<int> ranks_on_device_of(std::span<const RankDevice> ranks, int rank);

// For the head of a log: how many GPUs, which ones, whose; nothing of one rank or of CPUs.
std::vector<std::string> device_lines(std::span<const RankDevice> ranks);

}  // namespace shoal
