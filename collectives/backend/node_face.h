// Additional interface of a host's Communicator for hierarchical, which drives the host's
// operations together with the network's and therefore decides where threads sleep.
#pragma once

#include "shoal/collectives/work.h"

namespace shoal::collectives {

class NodeWork : public Work {
 public:
  // Sleeps for at most this long, until the host's other ranks may have made progress. Makes none
  // itself.
  virtual void doze(int milliseconds) = 0;
};

class NodeFace {
 public:
  virtual ~NodeFace() = default;
  // From now on callers test or wait for every operation until it is done. Ends the progress
  // thread, which would only wake up to find another thread driving.
  virtual void drive_by_hand() = 0;
};

}  // namespace shoal::collectives
