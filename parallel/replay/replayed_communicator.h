// A Communicator for captured steps.
#pragma once

#include <memory>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/nn/capture/host_work.h"
#include "shoal/nn/capture/planned_memory.h"

namespace shoal::parallel {

// The memory of all groups of one mesh, for StepCaptureOptions::beside. Used by one thread.
using ReplayedMemories = std::shared_ptr<std::vector<nn::PlannedMemory*>>;

// Wraps `inner`. While a step is captured, operations become `host_work` (NotedWorks: their Works
// support block_stream() only), unless graphs can hold them (Communicator::can_capture()). Outside
// a capture, operations go to `inner` directly.
//
// memory_resource() is planned (PlannedMemory) and added to `memories`. A split of it is such a
// Communicator too, with its memory in `memories`. host(), register_buffer() and watch() are those
// of `inner`. host() throws during a capture: every replay would repeat that step's host values,
// and no caller could wait for them.
//
// `inner` and `host_work` must outlive the result. Captured steps must not outlive it.
std::unique_ptr<collectives::Communicator> make_replayed_communicator(
    collectives::Communicator& inner, const nn::HostWork& host_work, ReplayedMemories memories);

}  // namespace shoal::parallel
