// What hierarchical needs of a host's Communicator beside its public face: hierarchical drives its
// operations itself, together with the network's, and so decides who sleeps on what.
#pragma once

#include "shoal/collectives/work.h"

namespace shoal::collectives {

class NodeWork : public Work {
 public:
  // Sleeps until the host's other ranks may have brought it on, at most so long. Drives nothing.
  virtual void doze(int milliseconds) = 0;
};

class NodeFace {
 public:
  virtual ~NodeFace() = default;
  // From now on every operation is tested or waited for until it is done: ends the progress thread,
  // which would only wake now and then to find that somebody else is at it.
  virtual void drive_by_hand() = 0;
};

}  // namespace shoal::collectives
