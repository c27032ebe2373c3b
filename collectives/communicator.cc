#include "shoal/collectives/communicator.h"

namespace shoal::collectives {

void Work::wait() { wait(Deadline::in_seconds(default_deadline_seconds())); }

void Work::block_stream(Stream) { wait(); }

}  // namespace shoal::collectives
