#include "shoal/collectives/communicator.h"

#include "shoal/runtime/base/clock.h"

namespace shoal::collectives {

void Work::wait() { wait(Deadline::in_seconds(default_deadline_seconds())); }

void Work::block_stream(Stream) { wait(); }

WorkPtr Communicator::watch(Stream) { return nullptr; }

std::unique_ptr<Registration> Communicator::register_buffer(void*, std::int64_t) {
  return std::make_unique<Registration>();
}

}  // namespace shoal::collectives
