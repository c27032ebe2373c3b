#include "shoal/collectives/watch.h"

namespace shoal::collectives {

void watch(Communicator& ranks, Stream stream) {
  if (ranks.size() == 1 || stream.device.is_cpu()) return;
  if (auto* const on_streams = dynamic_cast<OnStreams*>(&ranks)) on_streams->watch(stream);
}

}  // namespace shoal::collectives
