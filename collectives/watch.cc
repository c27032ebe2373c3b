#include "shoal/collectives/watch.h"

namespace shoal::collectives {

void watch(Communicator& ranks, Stream stream) {
  if (ranks.size() == 1 || stream.device.is_cpu()) return;
  if (const WorkPtr queued = ranks.watch(stream)) queued->wait();
}

}  // namespace shoal::collectives
