// Additional interface of a host's Communicator, for callers that decide where threads sleep.
// hierarchical drives the host's operations together with the network's. The threads of PyTorch's
// backend share one Communicator.
#pragma once

#include <atomic>

#include "shoal/collectives/work.h"

namespace shoal::collectives {

class NodeWork : public Work {
 public:
  // Sleeps until the host's other ranks may have made progress, but at most this long. Makes no
  // progress itself.
  virtual void doze(int milliseconds) = 0;
  // Makes progress until the operation is done (returns true), `until` has passed, or `wanted` is
  // above 0. Raising `wanted` ends a sleep only with interrupt(). Unless `may_spin`, the thread
  // never occupies a core while it waits. The operation has the deadline of test().
  virtual bool drive(const Deadline& until, const std::atomic<int>& wanted, bool may_spin) = 0;
  // Ends the sleep of a thread in drive(). Call from any thread.
  virtual void interrupt() = 0;
};

class NodeFace {
 public:
  virtual ~NodeFace() = default;
  // Callers promise to test or wait for every later operation until it is done. Ends the progress
  // thread, which would only wake up to find another thread driving.
  virtual void drive_by_hand() = 0;
};

}  // namespace shoal::collectives
