// A Communicator for steps that are captured.
#pragma once

#include <memory>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/nn/capture/host_work.h"
#include "shoal/nn/capture/planned_memory.h"

namespace shoal::parallel {

// The memory of all groups of one mesh, for StepCaptureOptions::beside. One thread.
using ReplayedMemories = std::shared_ptr<std::vector<nn::PlannedMemory*>>;

// `inner`, whose operations are `host_work` while a step is captured (NotedWorks: their Works are
// good for block_stream() alone), unless graphs can hold them (Communicator::can_capture()).
// Outside a capture its own. Its memory_resource() is planned (PlannedMemory) and added to
// `memories`; what is split from it is such a Communicator too, in `memories` too. host() is the
// inner one's; asked for while a step is captured it throws: what hosts exchange would be that
// step's for ever, and nobody could wait for it. register_buffer() and watch() are the inner one's.
//
// `inner` and `host_work` outlive the result; so do the ranks' captured steps not.
std::unique_ptr<collectives::Communicator> make_replayed_communicator(
    collectives::Communicator& inner, const nn::HostWork& host_work, ReplayedMemories memories);

}  // namespace shoal::parallel
